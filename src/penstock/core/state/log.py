"""The log: the truth about a task's stores, as segments of changes in Spark's state.

Per batch, store and *key group* (a fixed share of the keys, by checksum) one segment is written. The *manifest* lists the
segments; it is written in the same Spark commit, so the two cannot disagree. From the manifest follows

* how a local copy of version v catches up: by the segments that reach past v, in order, or, if deletions between v and
  now are no longer in the log, by starting from nothing;
* what is compacted: one key group at a time, whenever its changes outweigh its base, so that the work per batch follows
  the batch's own changes and never the size of the store.

A *base* is a segment that holds all live keys of its key group. ``since`` is the version from which on a segment knows
every deletion; a base keeps the deletions of the compaction that made it, so that copies which are only a little behind
need no rebuild.

This module decides; reading and writing segments is the driver's.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from penstock.core.model.errors import StoreError
from penstock.core.ports import StoreChange, Version, store_of

KEY_GROUPS = 64
"""Key groups per store and task: a power of two. 64 keeps a compaction step below a tenth of a second for a million keys
in a task, and the segments of a large batch at 64 state writes per store (about 5 ms)."""

_REMEMBERED = 64
"""How many versions back a local copy is recognised as belonging to the same history."""
_MAX_SEGMENTS = 12
"""Segments of a key group before the small ones are merged although they do not outweigh the base."""
_FORMAT = 1


class Segment(NamedTuple):
    """A segment of a key group.

    Attributes:
        sequence: Its key in Spark's state, unique in the task.
        since: Version from which on it knows every deletion.
        upto: Version of its newest change.
        size: Bytes.
        base: Whether it holds all live keys of its key group up to ``upto``.
        changes: Number of changes.
    """

    sequence: int
    since: int
    upto: int
    size: int
    base: bool
    changes: int = 0


KeyGroup = tuple[str, int]
"""A byte store and the number of a key group."""


@dataclass(frozen=True)
class Manifest:
    """Which segments make up the state of a task at a version.

    Attributes:
        version: The version of the state.
        history: Tokens of the latest versions, the newest last.
        next_sequence: The next segment's number.
        segments: Per store and key group, oldest first.
    """

    version: int = 0
    history: tuple[str, ...] = ()
    next_sequence: int = 0
    segments: Mapping[KeyGroup, tuple[Segment, ...]] = field(default_factory=dict)

    @property
    def current(self) -> Version:
        """The version with its token."""
        return Version(self.version, self.history[-1] if self.history else "")

    def remembers(self, version: Version) -> bool:
        """Tell whether a version belongs to this history and is recent enough to be known."""
        back = self.version - version.number
        return 0 <= back < len(self.history) and self.history[-1 - back] == version.token

    def live_bytes(self) -> int:
        """Give the bytes of all segments."""
        return sum(segment.size for group in self.segments.values() for segment in group)

    def to_json(self) -> dict[str, Any]:
        """Give the manifest as what JSON can say."""
        return {
            "format": _FORMAT,
            "version": self.version,
            "history": list(self.history),
            "next": self.next_sequence,
            "segments": [[store, group, *map(list, s)] for (store, group), s in self.segments.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Read what :meth:`to_json` gave.

        Raises:
            StoreError: If a newer Penstock wrote it.
        """
        if data["format"] != _FORMAT:
            raise StoreError(f"the checkpoint was written by a newer Penstock (log format {data['format']})")
        segments = {
            (store, group): tuple(Segment(*s) for s in rest) for store, group, *rest in data["segments"]
        }
        return cls(data["version"], tuple(data["history"]), data["next"], segments)


def key_group(key: bytes) -> int:
    """Give the key group of a serialised key."""
    return zlib.crc32(key) & (KEY_GROUPS - 1)


def by_key_group(changes: Iterable[StoreChange]) -> dict[int, list[StoreChange]]:
    """Split changes by key group."""
    groups: dict[int, list[StoreChange]] = {}
    for change in changes:
        groups.setdefault(key_group(change[0]), []).append(change)
    return groups


def advanced(manifest: Manifest, token: str) -> Manifest:
    """Give the manifest of the next version, still without its segments."""
    return replace(manifest, version=manifest.version + 1, history=(*manifest.history, token)[-_REMEMBERED:])


def appended(manifest: Manifest, group: KeyGroup, size: int, count: int = 0) -> tuple[Manifest, Segment]:
    """Add a segment with the changes of the manifest's version to a key group."""
    version = manifest.version
    segment = Segment(manifest.next_sequence, version - 1, version, size, base=False, changes=count)
    return _with_group(manifest, group, (*manifest.segments.get(group, ()), segment)), segment


def compacted(
    manifest: Manifest, group: KeyGroup, merged: Sequence[Segment], size: int, count: int = 0
) -> tuple[Manifest, Segment]:
    """Put one segment in the place of several successive ones of a key group."""
    old = manifest.segments[group]
    at = old.index(merged[0])
    base = at == 0
    # The base's own deletions are dropped; those of the others stay, and they begin where the base ended.
    since = merged[0].upto if merged[0].base else merged[0].since
    segment = Segment(manifest.next_sequence, since, merged[-1].upto, size, base, count)
    return _with_group(manifest, group, (*old[:at], segment, *old[at + len(merged) :])), segment


def _with_group(manifest: Manifest, group: KeyGroup, segments: tuple[Segment, ...]) -> Manifest:
    changed = {**manifest.segments, group: segments}
    return replace(manifest, next_sequence=manifest.next_sequence + 1, segments=changed)


def without_stores(manifest: Manifest, kept: Iterable[str]) -> tuple[Manifest, list[Segment]]:
    """Forget the stores that the topology no longer has; give the segments to be removed.

    The history is forgotten too: every local copy is rebuilt, so that none of them still holds the content of a store that
    comes back later under the same name.
    """
    names = set(kept)
    gone = [
        segment
        for (store, _), group in manifest.segments.items()
        if store_of(store) not in names
        for segment in group
    ]
    left = {key: group for key, group in manifest.segments.items() if store_of(key[0]) in names}
    if not gone:
        return manifest, gone
    token = f"{zlib.crc32(json.dumps([manifest.history, sorted(names)]).encode()):08x}"
    return replace(manifest, segments=left, history=(token,)), gone


def with_renamed_stores(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    """Give stores new names; segments stay where they are.

    The history is forgotten, as in :func:`without_stores`: local copies hold the old names and are rebuilt.

    Args:
        manifest: The manifest.
        names: New name per old name of a store; what the manifest does not have changes nothing.
    """
    segments = {(_renamed(store, names), group): found for (store, group), found in manifest.segments.items()}
    if segments.keys() == manifest.segments.keys():
        return manifest
    token = f"{zlib.crc32(json.dumps([manifest.history, sorted(names.items())]).encode()):08x}"
    return replace(manifest, segments=segments, history=(token,))


def _renamed(byte_store: str, names: Mapping[str, str]) -> str:
    store, slash, number = byte_store.partition("/")
    return f"{names.get(store, store)}{slash}{number}"


def without_slices(manifest: Manifest, dropped: Collection[str]) -> tuple[Manifest, list[Segment]]:
    """Forget slices that have expired; give the segments to be removed.

    A slice never comes back, because time does not: so copies that still hold it need no rebuild, they drop it.
    """
    gone = [s for (store, _), group in manifest.segments.items() if store in dropped for s in group]
    left = {key: group for key, group in manifest.segments.items() if key[0] not in dropped}
    return replace(manifest, segments=left), gone


def due_for_compaction(manifest: Manifest, budget: int) -> Iterator[tuple[KeyGroup, tuple[Segment, ...]]]:
    """Choose what to merge in this batch, the most wasteful key group first.

    Args:
        manifest: The manifest with this batch's segments.
        budget: Bytes of segments that may be read; at least one key group is chosen if any is due.

    Yields:
        A key group and the successive segments of it to merge, oldest first.
    """
    due = []
    for group, segments in manifest.segments.items():
        merged = _worth_merging(segments)
        if merged:
            due.append((len(segments), sum(s.size for s in merged), group, merged))
    spent = 0
    for _, size, group, merged in sorted(due, key=lambda d: (-d[0], d[1])):
        if spent and spent + size > budget:
            return
        spent += size
        yield group, merged


def _worth_merging(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Merge with the base when the changes outweigh it, or touch half as many keys; else only them, if they are too many."""
    if len(segments) < 2:
        return ()
    first, rest = segments[0], segments[1:]
    changes = sum(segment.size for segment in rest)
    touched = sum(segment.changes for segment in rest)
    if (changes >= first.size or 2 * touched >= first.changes > 0) and len(segments) >= 3:
        return segments
    return rest if len(segments) > _MAX_SEGMENTS else ()


def catch_up(manifest: Manifest, copy: Version | None) -> list[tuple[KeyGroup, Segment]] | None:
    """Choose the segments that bring a local copy up to the manifest.

    Args:
        manifest: The committed manifest.
        copy: The version of the local copy, None if it is empty.

    Returns:
        Segments per key group, oldest first, or None if the copy cannot catch up and must be wiped first; after that,
        call again with ``copy=None``.
    """
    if copy is None:
        return [(group, segment) for group, segments in manifest.segments.items() for segment in segments]
    if not manifest.remembers(copy):
        return None
    needed = [(g, s) for g, segments in manifest.segments.items() for s in segments if s.upto > copy.number]
    if any(segment.since > copy.number for _, segment in needed if segment.base):
        return None
    return needed


def encode_manifest(manifest: Manifest, extra: Mapping[str, Any]) -> bytes:
    """Write a manifest, with what else the task must remember, as bytes."""
    return json.dumps({"log": manifest.to_json(), **extra}, separators=(",", ":")).encode()


def decode_manifest(data: bytes | None) -> tuple[Manifest, dict[str, Any]]:
    """Read what :func:`encode_manifest` gave; None is the beginning of a task."""
    if data is None:
        return Manifest(), {}
    decoded = json.loads(data)
    return Manifest.from_json(decoded.pop("log")), decoded
