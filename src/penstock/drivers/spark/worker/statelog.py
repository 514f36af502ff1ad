"""The log of a task in Spark's state: restore, append, compact.

What is merged and what a copy lacks is decided in ``penstock.core.state.log``; here segments are read and written, one
state call each, and compressed.
"""

from __future__ import annotations

import logging
import pickle
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from penstock.core.model.errors import StoreError
from penstock.core.model.ids import TaskId
from penstock.core.ports import LocalCopy, StoreChange, Version
from penstock.core.state import segment as codec
from penstock.core.state.log import (
    KeyGroup,
    Manifest,
    Segment,
    advanced,
    appended,
    by_key_group,
    catch_up,
    compacted,
    due_for_compaction,
    without_slices,
    without_stores,
)

log = logging.getLogger("penstock.state")

_CODEC: Final = "zstd"
_APPLY_AT_ONCE = 200_000
_COMPACTION_PER_WRITTEN = 3
_COMPACTION_AT_LEAST = 1 << 20
_SLOW_RESTORE = 100_000


class StateLog:
    """The segments of one task, as a map from number to bytes in Spark's state. Owned by a batch."""

    def __init__(self, segments: Any, task: TaskId) -> None:
        self._segments = segments
        self._task = task

    def forget_stores(self, manifest: Manifest, kept: Iterable[str]) -> Manifest:
        """Remove the segments of stores that the topology no longer has."""
        manifest, gone = without_stores(manifest, kept)
        self._remove(gone)
        return manifest

    def restore(self, manifest: Manifest, copy: LocalCopy) -> int:
        """Bring the local copy up to the committed manifest.

        Returns:
            The number of changes that had to be fetched from the log; 0 when the copy was current, or one batch behind with
            that batch's changes parked beside it.

        Raises:
            StoreError: If a segment is missing or damaged.
        """
        held, wanted = copy.version(), manifest.current
        if manifest.version == 0:
            if held is not None:
                copy.wipe()
            return 0
        if held == wanted:
            return 0
        if self._apply_parked(manifest, copy, held):
            return 0
        needed = catch_up(manifest, held)
        if needed is None:
            copy.wipe()
            needed = catch_up(manifest, None) or []
        expired = copy.names() - {store for store, _ in manifest.segments}
        return self._apply_segments(needed, copy, held, wanted, expired)

    def load(self, content: Iterable[Mapping[str, list[StoreChange]]], copy: LocalCopy) -> Manifest:
        """Begin a log with content from elsewhere; the copy has it too.

        Args:
            content: Changes by byte store, oldest first, any number at a time.
            copy: The local copy, which is empty.

        Returns:
            The manifest of the first version.
        """
        manifest = advanced(Manifest(), secrets.token_hex(4))
        waiting: dict[str, dict[bytes, bytes | None]] = {}
        for part in content:
            for store, items in part.items():
                waiting.setdefault(store, {}).update(items)
            if sum(map(len, waiting.values())) >= _APPLY_AT_ONCE:
                manifest = self._loaded(manifest, waiting, copy)
                waiting = {}
        manifest = self._loaded(manifest, waiting, copy)
        copy.apply({}, manifest.current)
        return manifest

    def _loaded(
        self, manifest: Manifest, waiting: Mapping[str, Mapping[bytes, bytes | None]], copy: LocalCopy
    ) -> Manifest:
        changes = {store: list(items.items()) for store, items in waiting.items()}
        copy.check(changes)
        copy.apply(changes, Version(-1, "rebuilding"))
        for store, items in changes.items():
            for number, part in by_key_group(items).items():
                data = _packed(codec.encode(part))
                manifest, segment = appended(manifest, (store, number), len(data), len(part))
                self._put(segment, data)
        return manifest

    def write(
        self,
        manifest: Manifest,
        changes: Mapping[str, list[StoreChange]],
        copy: LocalCopy,
        dropped: Collection[str] = (),
    ) -> Manifest:
        """Drop expired byte stores, append the changes of a batch, compact a little, and park all this beside the copy.

        Returns:
            The manifest of the next version; the same manifest if nothing has changed.
        """
        if not changes and not dropped:
            return manifest
        copy.check(changes)
        manifest, gone = without_slices(advanced(manifest, secrets.token_hex(4)), dropped)
        self._remove(gone)
        written = 0
        for store, items in changes.items():
            for number, part in by_key_group(items).items():
                data = _packed(codec.encode(part))
                manifest, segment = appended(manifest, (store, number), len(data), len(part))
                self._put(segment, data)
                written += len(data)
        manifest = self._compact(manifest, max(_COMPACTION_PER_WRITTEN * written, _COMPACTION_AT_LEAST))
        encoded = {store: codec.encode(items) for store, items in changes.items()}
        copy.park(manifest.current, pickle.dumps((encoded, tuple(dropped))))
        return manifest

    def _apply_parked(self, manifest: Manifest, copy: LocalCopy, held: Version | None) -> bool:
        before = manifest.version - 1
        one_behind = manifest.remembers(held) if held is not None else before == 0
        if not one_behind or (held is not None and held.number != before):
            return False
        parked = copy.parked(manifest.current)
        if parked is None:
            return False
        try:
            encoded, dropped = pickle.loads(parked)
            changes = {store: codec.decode(data, "parked changes") for store, data in encoded.items()}
        except Exception as error:  # a file that was cut off or written over can fail in any way
            log.warning(
                "task %s: the parked changes cannot be read, fetching them from the log: %s",
                self._task,
                error,
            )
            return False
        copy.apply(changes, manifest.current, dropped)
        return True

    def _apply_segments(
        self,
        needed: list[tuple[KeyGroup, Segment]],
        copy: LocalCopy,
        held: Version | None,
        wanted: Version,
        expired: Collection[str],
    ) -> int:
        """Apply segments store by store; the version is set with the last of them, so a cut-off restore begins anew."""
        started, count = time.monotonic(), 0
        unfinished = held or Version(-1, "restoring")
        needed = sorted(needed, key=lambda item: (item[0], item[1].sequence))
        for store, group in groupby(needed, key=lambda item: item[0][0]):
            waiting: list[StoreChange] = []
            for (_, number), segment in group:
                waiting.extend(self._get(store, number, segment))
                if len(waiting) >= _APPLY_AT_ONCE:
                    count += len(waiting)
                    copy.apply({store: codec.merge([waiting])}, unfinished)
                    waiting = []
            count += len(waiting)
            copy.apply({store: codec.merge([waiting])}, unfinished)
        copy.apply({}, wanted, expired)
        if count >= _SLOW_RESTORE:
            seconds = time.monotonic() - started
            log.warning(
                "task %s: restored %d changes from version %s to %d in %.1f s (%.0f changes/s), because the local copy was %s",
                self._task, count, held.number if held else "nothing", wanted.number, seconds, count / max(seconds, 1e-3),
                "missing" if held is None else "stale",
            )  # fmt: skip
        return count

    def _compact(self, manifest: Manifest, budget: int) -> Manifest:
        for group, merged in list(due_for_compaction(manifest, budget)):
            parts = [self._get(*group, segment) for segment in merged]
            if merged[0].base:
                parts[0] = [change for change in parts[0] if change[1] is not None]
            changes = codec.merge(parts)
            data = _packed(codec.encode(changes))
            manifest, segment = compacted(manifest, group, merged, len(data), len(changes))
            self._put(segment, data)
            self._remove(merged)
        return manifest

    def _remove(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._segments.removeKey((segment.sequence,))

    def _put(self, segment: Segment, data: bytes) -> None:
        self._segments.updateValue((segment.sequence,), (data,))

    def _get(self, store: str, number: int, segment: Segment) -> list[StoreChange]:
        where = f"segment {segment.sequence} of store {store!r}, key group {number}, task {self._task}"
        found = self._segments.getValue((segment.sequence,))
        if found is None:
            raise StoreError(
                f"the log is damaged: {where} is missing from the checkpoint. Restore the checkpoint from a backup, or "
                "start over with another checkpoint_location"
            )
        return codec.decode(_unpacked(bytes(found[0]), where), where)


def _packed(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, codec=_CODEC, asbytes=True)
    return len(data).to_bytes(4, "little") + compressed


def _unpacked(data: bytes, where: str) -> bytes:
    try:
        raw: bytes = pa.decompress(data[4:], int.from_bytes(data[:4], "little"), codec=_CODEC, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"the log is damaged: {where} cannot be decompressed: {error}") from error
    return raw
