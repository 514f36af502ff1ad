"""Divides the state of a stopped query among more key ranges.

A query cannot move a group of Spark's state to another group. The division therefore reads the state from the checkpoint and writes
one file per new task beside it. The first micro-batch of the next query loads the files into Spark's state. Its plan contains their name,
so a repeated micro-batch reads the same files. Until this micro-batch is complete, the checkpoint contains the undivided state.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from millstream.core.model.errors import IncompatibleTopologyError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.runtime.batch_plan import DividedState
from millstream.core.state.division.entry_keys import EntryKeys, same_key
from millstream.core.state.division.shares import Division, manifest_of_share
from millstream.core.state.segments.key_groups import KeyGroup
from millstream.core.state.segments.log import Manifest, decode_manifest, encode_manifest
from millstream.drivers.segment_columns import columns_of, segment_of
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.driver.stored import state_of
from millstream.drivers.spark.executor.key_hashing import by_number, ranges_of
from millstream.drivers.spark.executor.statelog import packed, unpacked
from millstream.drivers.spark.share_files import MANIFEST, ShareWriter


@dataclass(frozen=True)
class DividedTask:
    id: TaskId
    division: Division
    keys: EntryKeys


@dataclass
class SharesOfTask:
    """The shares of one task's state while its segments are read."""

    task: DividedTask
    manifest: Manifest
    memory: Mapping[str, object]
    writers: Mapping[TaskId, ShareWriter]
    kept: dict[TaskId, dict[int, tuple[int, int]]] = field(default_factory=dict)
    groups: dict[int, KeyGroup] = field(init=False)

    def __post_init__(self) -> None:
        segments = self.manifest.segments.items()
        self.groups = {segment.sequence: group for group, own in segments for segment in own}
        for store, _ in self.manifest.segments:
            self.task.keys.of(store)

    def add(self, sequence: int, data: bytes) -> None:
        """Divide a segment. Ignore a segment that is not in the manifest."""
        if sequence not in self.groups:
            return
        store, _ = self.groups.pop(sequence)
        where = f"segment {sequence} of store {store!r}, task {self.task.id}"
        changes, division = columns_of(unpacked(data, where), where), self.task.division
        entry_keys = changes["key"].combine_chunks()
        key_of = self.task.keys.of(store)
        keys = (
            entry_keys if key_of is same_key else pa.array(map(key_of, entry_keys.to_pylist()), pa.binary())
        )
        shares = by_number(changes, ranges_of(keys, division.ranges), division.ranges)
        for number, share in enumerate(shares):
            if not len(share):
                continue
            task, written = division.task_of(self.task.id, number), packed(segment_of(share))
            self.writers[task].add(sequence, written)
            self.kept.setdefault(task, {})[sequence] = (len(written), len(share))

    def finish(self, token: str) -> None:
        if self.groups:
            raise StoreError(
                f"the log is damaged: {len(self.groups)} segments of task {self.task.id} are missing from the checkpoint. Restore the "
                "checkpoint from a backup, or start over with another checkpoint_location"
            )
        for task in self.task.division.tasks(self.task.id):
            manifest = manifest_of_share(self.manifest, self.kept.get(task, {}), f"{token}-{task}")
            self.writers[task].add(MANIFEST, encode_manifest(manifest, self.memory))


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
    shares = dict(_shares_by_group(session, checkpoint, divided, writers))
    log = state_of(session, *checkpoint, "log").selectExpr(
        "key.group AS group", "user_map_key.sequence AS sequence", "user_map_value.segment AS segment"
    )
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
        yield row.group, SharesOfTask(task, *decode_manifest(bytes(row.manifest)), writers)


def _sync(directory: Path) -> None:
    """Wait until the file names are on the disk."""
    for path in (directory, directory.parent, directory.parent.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_shares(directory: Path, needed: Callable[[str], bool]) -> None:
    """Delete the shares of earlier divisions.

    Args:
        needed: Returns whether an incomplete micro-batch still needs the shares with a given name.
    """
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        if not needed(path.name):
            shutil.rmtree(path, ignore_errors=True)
