"""Divides the state of a stopped query among more key ranges.

A query cannot move a group of Spark's state to another group. The division therefore reads the state from the checkpoint and writes
one file per new task beside it. The first micro-batch of the next query loads the files into Spark's state. Its plan contains their name,
so a repeated micro-batch reads the same files. Until this micro-batch is complete, the checkpoint contains the undivided state.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from millstream.core.model.errors import IncompatibleTopologyError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.runtime.batch_plan import DividedState
from millstream.core.state.division.entry_keys import EntryKeys, same_key
from millstream.core.state.division.shares import Division, ShareGroup, manifest_of_share, share_groups
from millstream.core.state.segments.log import Manifest, decode_manifest, encode_manifest
from millstream.drivers.segments import columns_of, merged, segment_of
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.driver.stored import state_of
from millstream.drivers.spark.executor.statelog import packed, unpacked
from millstream.drivers.spark.share_files import MANIFEST, ShareWriter
from millstream.drivers.spark.wire import by_number, ranges_of

_THREADS: Final = 4


@dataclass(frozen=True)
class DividedTask:
    id: TaskId
    division: Division
    keys: EntryKeys


class SharesOfTask:
    """The shares of one task's state while its segments are read.

    Args:
        threads: Divide the key groups. Arrow, zstd and NumPy let several run at the same time.
    """

    def __init__(
        self,
        task: DividedTask,
        manifest: Manifest,
        memory: Mapping[str, object],
        writers: Mapping[TaskId, ShareWriter],
        threads: Executor,
    ) -> None:
        self._task = task
        self._manifest = manifest
        self._memory = memory
        self._writers = writers
        self._threads = threads
        self._writing = Lock()
        self._divided: list[Future[None]] = []
        self._groups = share_groups(manifest, task.division)
        for store, _ in manifest.segments:
            task.keys.of(store)
        self._missing = {
            segment.sequence: number for number, group in enumerate(self._groups) for segment in group.merged
        }
        self._read: dict[int, dict[int, bytes]] = defaultdict(dict)
        self._kept: dict[TaskId, dict[int, tuple[int, int]]] = defaultdict(dict)

    def add(self, sequence: int, data: bytes) -> None:
        """Divide a key group when its last segment is added. Ignore a segment that is not in the manifest."""
        number = self._missing.pop(sequence, None)
        if number is None:
            return
        self._read[number][sequence] = data
        if len(self._read[number]) == len(self._groups[number].merged):
            self._divided.append(self._threads.submit(self._divide, number, self._read.pop(number)))

    def _divide(self, number: int, segments: Mapping[int, bytes]) -> None:
        division, changes = self._task.division, self._changes(self._groups[number], segments)
        entry_keys, key_of = (
            changes["key"].combine_chunks(),
            self._task.keys.of(self._groups[number].group[0]),
        )
        keys = (
            entry_keys if key_of is same_key else pa.array(map(key_of, entry_keys.to_pylist()), pa.binary())
        )
        shares = by_number(changes, ranges_of(keys, division.ranges), division.ranges)
        for key_range, share in enumerate(shares):
            if not len(share):
                continue
            task, data = division.task_of(self._task.id, key_range), packed(segment_of(share))
            with self._writing:
                self._writers[task].add(number, data)
                self._kept[task][number] = len(data), len(share)

    def _changes(self, group: ShareGroup, segments: Mapping[int, bytes]) -> pa.Table:
        """Return the newest change of each key in a key group, without deletions that hide nothing."""
        runs = []
        for segment in group.merged:
            where = f"segment {segment.sequence} of store {group.group[0]!r}, task {self._task.id}"
            runs.append(columns_of(unpacked(segments[segment.sequence], where), where))
        changes = merged(runs) if len(runs) > 1 else runs[0]
        return changes.drop_null() if group.lowest else changes

    def finish(self, token: str) -> None:
        """Wait for the threads and write the manifests.

        Raises:
            StoreError: If a segment is missing or damaged, or has keys of other key ranges.
        """
        for divided in self._divided:
            divided.result()
        if self._missing:
            raise StoreError(
                f"the log is damaged: {len(self._missing)} segments of task {self._task.id} are missing from the checkpoint. Restore the "
                "checkpoint from a backup, or start over with another checkpoint_location"
            )
        for task in self._task.division.tasks(self._task.id):
            manifest = manifest_of_share(self._manifest, self._groups, self._kept[task], f"{token}-{task}")
            self._writers[task].add(MANIFEST, encode_manifest(manifest, self._memory))


def divide(
    session: SparkSession,
    checkpoint: tuple[str, int],
    directory: Path,
    divided: Mapping[TaskId, DividedTask],
    tasks: list[TaskId],
) -> DividedState:
    """Divide the state of tasks and write the share of each new task.

    Args:
        checkpoint: The location of the checkpoint, and the number of a complete micro-batch.

    Raises:
        IncompatibleTopologyError: If the state cannot be divided among these tasks.
    """
    name = secrets.token_hex(8)
    target = directory / name
    target.mkdir(parents=True)
    writers = {task: ShareWriter(target, task) for task in tasks}
    log = state_of(session, *checkpoint, "log").selectExpr(
        "key.group AS group", "user_map_key.sequence AS sequence", "user_map_value.segment AS segment"
    )
    with ThreadPoolExecutor(_THREADS) as threads:
        shares = dict(_shares_by_group(session, checkpoint, divided, writers, threads))
        for row in log.toLocalIterator():
            if row.group in shares:
                shares[row.group].add(row.sequence, bytes(row.segment))
        for each in shares.values():
            each.finish(name)
    for writer in writers.values():
        writer.finish()
    _sync(target)
    return DividedState(name, tuple(sorted({task.subtopology for task in tasks})))


def _shares_by_group(
    session: SparkSession,
    checkpoint: tuple[str, int],
    divided: Mapping[TaskId, DividedTask],
    writers: Mapping[TaskId, ShareWriter],
    threads: Executor,
) -> Iterator[tuple[int, SharesOfTask]]:
    """Return the shares of each task with state, by grouping key."""
    task_of = {group: task for task, group in grouping_keys(divided).items()}
    heads = state_of(session, *checkpoint, "head").selectExpr("key.group AS group", "value.manifest")
    for row in heads.collect():
        if row.group not in task_of:
            continue
        task = divided[task_of[row.group]]
        missing = [new for new in task.division.tasks(task.id) if new not in writers]
        if missing:
            raise IncompatibleTopologyError(
                f"the state of task {task.id} cannot be divided into key ranges: its partitions no longer exist. Leave parallelism= as it "
                "was"
            )
        yield row.group, SharesOfTask(task, *decode_manifest(bytes(row.manifest)), writers, threads)


def _sync(directory: Path) -> None:
    """Wait until the file names are on the disk."""
    for path in (directory, directory.parent, directory.parent.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_shares(directory: Path, needed: str | None) -> None:
    """Delete the shares of earlier divisions.

    Args:
        needed: Name of the shares that an incomplete micro-batch still needs.
    """
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.name != needed:
            shutil.rmtree(path, ignore_errors=True)
