"""Restore: brings a local copy up to the committed manifest.

A copy that is a few versions behind applies the parked changes of each version. Otherwise, the restore applies the missing segments
of the log, store by store.

The write pattern limits the rate: a copy appends keys that arrive in order, but writes a page for each key in random order. A segment is
sorted, but each segment of a store spans all its keys. A restore that exceeds its memory therefore uses temporary files. It divides
every segment at the same keys and writes each key range to a separate file. It then merges and sorts each file in memory and applies
the files in order. A checksum assigns keys to key groups, so the keys of one segment are good division points for the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import IO, Final

import pyarrow as pa

from millstream.core.ports import DEFAULT_MEMORY_BYTES, RESTORING, LocalCopy, StoreChange, Version
from millstream.core.state.segments.key_groups import KeyGroup
from millstream.core.state.segments.log import Manifest, Segment, catch_up, why_restored
from millstream.drivers.directory import CopyDirectory
from millstream.drivers.segments import SCHEMA, bounds_of, divided_at, newest
from millstream.drivers.spark.executor.restore_progress import (
    RestoreListener,
    RestoreProgress,
    StoreProgress,
    log_progress,
)

Needed = list[tuple[KeyGroup, Segment]]
ReadSegment = Callable[[KeyGroup, Segment], pa.Table]

_COPIES: Final = 2
"""How often a record is in memory: as it was read, and in key order."""
_ENTRY_BYTES: Final = 16
"""Memory overhead of a record: its place in the order, and a few bits of whether its key is repeated."""
_SHARE: Final = 1 / 4
"""The fraction of the memory that records in transit may use. The copy uses the rest."""


@dataclass(frozen=True)
class RestoreSettings:
    """Resources of a restore.

    Attributes:
        scratch: Directory for temporary files. None for the system's default.
    """

    memory_bytes: int = DEFAULT_MEMORY_BYTES
    scratch: str | None = None
    listener: RestoreListener = field(default=log_progress)


class Restore:
    """Brings the local copies of one task up to a manifest. Owned by a micro-batch."""

    def __init__(self, task: str, read: ReadSegment, settings: RestoreSettings) -> None:
        self._task = task
        self._read = read
        self._settings = settings

    def bring_up(self, manifest: Manifest, copy: LocalCopy) -> int:
        """Bring a local copy up to the committed manifest.

        Returns:
            The number of changes fetched from the log.
        """
        current, target = copy.version(), manifest.current
        if manifest.version == 0:
            if current is not None:
                copy.wipe()
            return 0
        if current == target:
            return 0
        current = _with_parked(manifest, copy, current)
        if current == target:
            return 0
        why = why_restored(manifest, current, copy.why_empty())
        needed = catch_up(manifest, current)
        if needed is None:
            copy.wipe()
            current, needed = None, catch_up(manifest, None) or []
        unfinished = RESTORING if current is None else current._replace(toward=target.token)
        count = 0
        for store, segments in groupby(needed, key=lambda item: item[0][0]):
            origin = None if current is None else current.number
            begin = RestoreProgress(self._task, store, why, origin, target.number)
            count += self._store(store, list(segments), copy, unfinished, begin)
        copy.apply({}, target, copy.names() - {store for store, _ in manifest.segments})
        return count

    def _store(
        self, store: str, segments: Needed, copy: LocalCopy, unfinished: Version, begin: RestoreProgress
    ) -> int:
        """Apply the segments of one store and return the number of changes."""
        largest = max(segments, key=lambda item: item[1].size)
        sample = self._read(*largest)
        planned = _memory(sample) * sum(segment.size for _, segment in segments) // max(largest[1].size, 1)
        room = int(self._settings.memory_bytes * _SHARE)
        parts = -(-planned // room)
        progress = StoreProgress(
            replace(begin, total=sum(segment.changes for _, segment in segments)), self._settings.listener
        )
        runs = (sample if item == largest else self._read(*item) for item in segments)
        with self._naming_the_disk(), ExitStack() as files:
            ranges = [_KeyRange(self._file(files) if parts > 1 else None) for _ in range(max(parts, 1))]
            for records in _distributed(runs, ranges, bounds_of(sample, parts), room):
                progress.advance(records / 2)
            for key_range in ranges:
                for changes in key_range.take_newest():
                    copy.apply({store: changes}, unfinished)
                progress.advance(key_range.records / 2)
                pa.default_memory_pool().release_unused()
        count = sum(key_range.records for key_range in ranges)
        progress.finish(count)
        return count

    @contextmanager
    def _naming_the_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # of the temporary files: a copy reports its own errors
            directory = CopyDirectory(self._settings.scratch or tempfile.gettempdir())
            raise directory.unusable_error(error) from error

    def _file(self, files: ExitStack) -> IO[bytes]:
        return files.enter_context(tempfile.TemporaryFile(dir=self._settings.scratch))


class _KeyRange:
    """Runs of changes in one key range, oldest first, in memory or in a file."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self.records = 0
        self._file = file
        self._writer = None if file is None else pa.ipc.new_stream(file, SCHEMA)
        self._runs: list[pa.Table] = []

    def add(self, run: pa.Table) -> None:
        self.records += len(run)
        self._runs.append(run)

    def save(self) -> None:
        """Move the runs in memory to the file, as one run because each takes a message of its own."""
        if self._writer is not None and self._runs:
            self._writer.write_table(pa.concat_tables(self._runs).combine_chunks())
            self._runs.clear()

    def take_newest(self) -> Iterator[list[StoreChange]]:
        """Return the newest change of each key, in key order and in parts, and clear the range."""
        runs, self._runs = self._runs, []
        if self._file is not None and self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            runs = [pa.ipc.open_stream(self._file).read_all()]
            self._file.close()
        return newest(runs)


def _distributed(
    runs: Iterable[pa.Table], ranges: list[_KeyRange], bounds: list[bytes], room: int
) -> Iterator[int]:
    """Distribute runs over key ranges and yield the size of each run. The first range ends at the first bound."""
    waiting = 0
    for run in runs:
        for key_range, part in zip(ranges, divided_at(run, bounds)):
            key_range.add(part)
        waiting += run.nbytes
        if waiting > room / _COPIES:
            _save(ranges)
            waiting = 0
        yield len(run)
    _save(ranges)


def _save(ranges: list[_KeyRange]) -> None:
    for key_range in ranges:
        key_range.save()


def _memory(records: pa.Table) -> int:
    memory: int = _COPIES * records.nbytes + _ENTRY_BYTES * len(records)
    return memory


def _with_parked(manifest: Manifest, copy: LocalCopy, current: Version | None) -> Version | None:
    """Apply the parked versions that follow the copy's version, and return the version reached."""
    if current is not None and not manifest.remembers(current):
        return current
    for version in manifest.versions_after(current):
        parked = copy.parked(version)
        if parked is None:
            break
        copy.apply(parked.changes, version, parked.dropped)
        current = version
    return current
