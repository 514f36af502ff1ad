"""The log of a task in Spark's state: restore, append, compact.

This module compresses, reads and writes segments, with one state call per segment. ``millstream.core.state.segments.log`` decides which
segments are merged and which ones a copy needs. ``restore.py`` restores copies.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Protocol

import pyarrow as pa

from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.ports import LocalCopy, Segments, StoreChange, Version
from millstream.core.state.segments.compaction import due_before_appending, due_for_compaction
from millstream.core.state.segments.key_groups import KeyGroup
from millstream.core.state.segments.log import (
    Manifest,
    Segment,
    Step,
    advanced,
    appended,
    compacted,
    drops_deletions,
    emptied,
    moved_down,
    without_slices,
    without_stores,
)
from millstream.drivers.segments import by_lower_group, columns_of, merged, segment_of, segments_of
from millstream.drivers.spark.executor.restore import Restore, RestoreSettings
from millstream.drivers.spark.share_files import MANIFEST

_CODEC: Final = "zstd"
_COMPACTION_PER_WRITTEN = 6
_COMPACTION_AT_LEAST = 1 << 20
_LOADED_AT_ONCE = 200_000
_LOADED_BYTES = 64 << 20
"""Limits of the changes from a changelog topic that are in memory together: their number, and the bytes of keys and values."""


class Parking(Protocol):
    """Parks the changes of a micro-batch: one local copy or several."""

    def park(self, version: Version, changes: Segments, dropped: Collection[str] = ()) -> None: ...


class StateLog:
    """The segments of one task in Spark's state, by number. Owned by a micro-batch."""

    def __init__(self, segments: Any, task: TaskId, settings: RestoreSettings | None = None) -> None:
        self._segments = segments
        self._task = task
        self._settings = settings or RestoreSettings()

    def forget_stores(self, manifest: Manifest, kept: Iterable[str]) -> Manifest:
        manifest, gone = without_stores(manifest, kept)
        self._remove(gone)
        return manifest

    def restore(self, manifest: Manifest, copy: LocalCopy) -> int:
        """Bring a local copy up to the committed manifest. The manifest is restricted to the stores of the copy."""
        return Restore(str(self._task), self._read, self._settings).bring_up(manifest, copy)

    def take_share(self, manifest: Manifest, share: Iterable[tuple[int, bytes]]) -> bytes | None:
        """Replace the whole log with a share of divided state.

        Args:
            share: Numbers and bytes of the segments, followed by the manifest.

        Returns:
            The encoded manifest of the share, or None if the share is empty.
        """
        self.forget_stores(manifest, ())
        encoded = None
        for number, data in share:  # read to the end, because the checksum is last
            if number == MANIFEST:
                encoded = data
            else:
                self._segments.updateValue((number,), (data,))
        return encoded

    def load(self, content: Iterable[Mapping[str, list[StoreChange]]]) -> Manifest:
        """Create a log with the content of a changelog topic.

        Args:
            content: Changes by byte store, oldest first, in parts of any size.

        Returns:
            The manifest of the first version. Local copies are restored to it afterwards.
        """
        manifest = advanced(Manifest(), secrets.token_hex(4))
        waiting: dict[str, dict[bytes, bytes | None]] = {}
        size = 0
        for part in content:
            for store, items in part.items():
                waiting.setdefault(store, {}).update(items)
                size += sum(len(key) + len(value or b"") for key, value in items)
            if size >= _LOADED_BYTES or sum(map(len, waiting.values())) >= _LOADED_AT_ONCE:
                manifest = self._loaded(manifest, waiting)
                waiting, size = {}, 0
        return self._loaded(manifest, waiting)

    def _loaded(self, manifest: Manifest, waiting: Mapping[str, Mapping[bytes, bytes | None]]) -> Manifest:
        for store, items in waiting.items():
            manifest, _, _ = self._append_changes(manifest, store, list(items.items()))
        return manifest

    def _append_changes(
        self, manifest: Manifest, store: str, items: list[StoreChange]
    ) -> tuple[Manifest, list[bytes], int]:
        """Append the changes of a byte store, in the order of :func:`segments_of`.

        Returns:
            The manifest, the segments before compression, and the number of bytes written.
        """
        segments, written = [], 0
        for number, count, encoded in segments_of(items):
            step = due_before_appending(manifest, (store, number))
            if step is not None:
                manifest = self._run_step(manifest, step)
            segments.append(encoded)
            data = packed(encoded)
            manifest, segment = appended(manifest, (store, number), len(data), count)
            self._put(segment, data)
            written += len(data)
        return manifest, segments, written

    def write(
        self,
        manifest: Manifest,
        changes: Mapping[str, list[StoreChange]],
        copy: Parking,
        dropped: Collection[str] = (),
    ) -> Manifest:
        """Drop expired byte stores, append the changes, compact within a budget, and park the same segments.

        Returns:
            The manifest of the next version, or the same manifest if nothing changed.
        """
        if not changes and not dropped:
            return manifest
        manifest, gone = without_slices(advanced(manifest, secrets.token_hex(4)), dropped)
        self._remove(gone)
        segments, written = dict[str, list[bytes]](), 0
        for store, items in changes.items():
            manifest, segments[store], size = self._append_changes(manifest, store, items)
            written += size
        manifest = self._compact(manifest, max(_COMPACTION_PER_WRITTEN * written, _COMPACTION_AT_LEAST))
        copy.park(manifest.current, segments, dropped)
        return manifest

    def _compact(self, manifest: Manifest, budget: int) -> Manifest:
        for step in list(due_for_compaction(manifest, budget)):
            manifest = self._run_step(manifest, step)
        return manifest

    def _run_step(self, manifest: Manifest, step: Step) -> Manifest:
        parts = [self._read(step.group, segment) for segment in step.merged]
        if drops_deletions(step.merged):
            parts[0] = parts[0].drop_null()
        move = self._moved_down if step.split else self._merged
        manifest = move(manifest, step, merged(parts))
        self._remove(step.merged)
        return manifest

    def _merged(self, manifest: Manifest, step: Step, changes: pa.Table) -> Manifest:
        data = packed(segment_of(changes))
        manifest, segment = compacted(manifest, step.group, step.merged, len(data), len(changes))
        self._put(segment, data)
        return manifest

    def _moved_down(self, manifest: Manifest, step: Step, changes: pa.Table) -> Manifest:
        store, number = step.group
        manifest, base = emptied(manifest, step)
        for lower, part in by_lower_group(number, changes):
            data = packed(segment_of(part))
            manifest, segment = moved_down(manifest, (store, lower), step, len(data), len(part), base=base)
            self._put(segment, data)
        return manifest

    def _remove(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._segments.removeKey((segment.sequence,))

    def _put(self, segment: Segment, data: bytes) -> None:
        self._segments.updateValue((segment.sequence,), (data,))

    def _read(self, group: KeyGroup, segment: Segment) -> pa.Table:
        where = f"segment {segment.sequence} of store {group[0]!r}, task {self._task}"
        stored = self._segments.getValue((segment.sequence,))
        if stored is None:
            raise StoreError(
                f"the log is damaged: {where} is missing from the checkpoint. Restore the checkpoint from a backup, or "
                "start over with another checkpoint_location"
            )
        return columns_of(unpacked(bytes(stored[0]), where), where)


def packed(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, codec=_CODEC, asbytes=True)
    return len(data).to_bytes(4, "little") + compressed


def unpacked(data: bytes, where: str) -> bytes:
    """Decompress a segment. An error names the segment as ``where``."""
    try:
        raw: bytes = pa.decompress(data[4:], int.from_bytes(data[:4], "little"), codec=_CODEC, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"the log is damaged: {where} cannot be decompressed: {error}. Restore the checkpoint from a backup, or start "
            "over with another checkpoint_location"
        ) from error
    return raw
