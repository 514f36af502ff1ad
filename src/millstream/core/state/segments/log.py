"""The log: the durable content of a task's stores, as segments of changes in Spark's state.

Each micro-batch writes one segment per store or, with many changes, one per *key group* (a share of the keys, by checksum). The *manifest*
lists the segments. It is written in the same Spark commit, so the two cannot disagree. The manifest determines

* how a local copy at version v catches up: it applies, in order, the segments that reach beyond v. If deletions between v and the
  current version are no longer in the log, the copy is rebuilt from scratch;
* what is compacted: one key group at a time, whenever its changes outweigh its base, so that the work per micro-batch is
  proportional to the micro-batch's own changes and not to the size of the store.

A *base* is a segment with all live keys of its key group. ``since`` is the first version from which a segment contains every
deletion. A base keeps the deletions of the compaction that created it, so that copies that are only slightly behind need no rebuild.

``key_groups`` defines the key groups. This module only decides; the driver reads and writes segments.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from millstream.core.model.errors import StoreError
from millstream.core.ports import Version, renamed, store_of
from millstream.core.state.segments.key_groups import KeyGroup, bits_of, groups_above

_REMEMBERED = 64
"""Number of recent versions whose tokens are kept, to recognise a local copy that belongs to the same history."""
_FORMAT = 1


class Segment(NamedTuple):
    """A segment of a key group.

    Attributes:
        sequence: Key of the segment in Spark's state, unique in the task.
        since: First version from which the segment contains every deletion.
        upto: Version of the newest change.
        base: Whether the segment contains all live keys of its key group up to ``upto``.
    """

    sequence: int
    since: int
    upto: int
    size: int
    base: bool
    changes: int = 0


class Step(NamedTuple):
    """A compaction step for one key group.

    Attributes:
        merged: Consecutive segments of the key group to merge, oldest first.
        split: Whether the merged content moves down to the key groups below instead of into one segment.
    """

    group: KeyGroup
    merged: tuple[Segment, ...]
    split: bool


@dataclass(frozen=True)
class Manifest:
    """The segments that make up the state of a task at a version.

    Attributes:
        history: Tokens of the latest versions, newest last.
        next_sequence: Sequence of the next segment.
        segments: Segments by store and key group, oldest first.
    """

    version: int = 0
    history: tuple[str, ...] = ()
    next_sequence: int = 0
    segments: Mapping[KeyGroup, tuple[Segment, ...]] = field(default_factory=dict)

    @property
    def current(self) -> Version:
        return Version(self.version, self.history[-1] if self.history else "")

    def remembers(self, version: Version) -> bool:
        """Return whether a version belongs to this history and is recent enough to be recognised."""
        back = self.version - version.number
        if not 0 <= back < len(self.history) or self.history[-1 - back] != version.token:
            return False
        return not version.toward or version.toward in self.history[len(self.history) - back :]

    def versions_after(self, version: Version | None) -> list[Version]:
        """Return the versions of this history that follow a version, oldest first.

        Args:
            version: A remembered version, or None for the empty initial state.

        Returns:
            The versions; empty if the history does not reach back that far.
        """
        number = 0 if version is None else version.number
        oldest = self.version - len(self.history) + 1
        if number + 1 < oldest:
            return []
        return [Version(n, self.history[n - oldest]) for n in range(number + 1, self.version + 1)]

    def only(self, stores: Collection[str]) -> Manifest:
        """Return the manifest of the same version with the segments of the given stores only."""
        kept = {group: segments for group, segments in self.segments.items() if store_of(group[0]) in stores}
        return replace(self, segments=kept)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": self.version,
            "history": list(self.history),
            "next": self.next_sequence,
            "segments": [[store, group, *map(list, s)] for (store, group), s in self.segments.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Decode the result of :meth:`to_json`.

        Raises:
            StoreError: If a newer Millstream wrote it.
        """
        if data["format"] != _FORMAT:
            raise StoreError(
                f"the checkpoint was written by a newer Millstream (log format {data['format']}); upgrade this "
                "installation"
            )
        segments = {
            (store, group): tuple(Segment(*s) for s in rest) for store, group, *rest in data["segments"]
        }
        return cls(data["version"], tuple(data["history"]), data["next"], segments)


def split_groups(groups: Iterable[KeyGroup]) -> set[KeyGroup]:
    """Return the key groups above those that are given."""
    return {(store, upper) for store, number in groups for upper in groups_above(number)}


def advanced(manifest: Manifest, token: str) -> Manifest:
    """Return the manifest of the next version, which has no segments of its own yet."""
    return replace(manifest, version=manifest.version + 1, history=(*manifest.history, token)[-_REMEMBERED:])


def appended(manifest: Manifest, group: KeyGroup, size: int, count: int = 0) -> tuple[Manifest, Segment]:
    """Add a segment with the changes of the current version to a key group."""
    version = manifest.version
    segment = Segment(manifest.next_sequence, version - 1, version, size, base=False, changes=count)
    return _with_group(manifest, group, (*manifest.segments.get(group, ()), segment)), segment


def compacted(
    manifest: Manifest, group: KeyGroup, merged: Sequence[Segment], size: int, count: int = 0
) -> tuple[Manifest, Segment]:
    """Replace consecutive segments of a key group with one segment."""
    old = manifest.segments[group]
    index = old.index(merged[0])
    base = index == 0 and group not in split_groups(manifest.segments)
    segment = Segment(manifest.next_sequence, _since(merged), merged[-1].upto, size, base, count)
    return _with_group(manifest, group, (*old[:index], segment, *old[index + len(merged) :])), segment


def emptied(manifest: Manifest, step: Step) -> tuple[Manifest, bool]:
    """Remove the segments of a step from its key group, before their content moves down.

    Returns:
        The manifest, and whether the key group held all its live keys until now, that is, whether the step splits it.
    """
    base = step.group not in split_groups(manifest.segments)
    left = tuple(segment for segment in manifest.segments[step.group] if segment not in step.merged)
    others = {group: segments for group, segments in manifest.segments.items() if group != step.group}
    return replace(manifest, segments={**others, step.group: left} if left else others), base


def moved_down(
    manifest: Manifest, group: KeyGroup, step: Step, size: int, count: int, *, base: bool
) -> tuple[Manifest, Segment]:
    """Add a segment to a key group, with its share of the content of the key group above.

    Args:
        base: Whether the segment contains all live keys of its key group.
    """
    upto = step.merged[-1].upto
    segment = Segment(manifest.next_sequence, _since(step.merged), upto, size, base, count)
    return _with_group(manifest, group, (*manifest.segments.get(group, ()), segment)), segment


def _since(merged: Sequence[Segment]) -> int:
    return merged[0].upto if drops_deletions(merged) else merged[0].since


def drops_deletions(merged: Sequence[Segment]) -> bool:
    """Return whether a step drops the deletions in its first segment: a merge drops those of the base and keeps those after it.

    A base that only moves down keeps them. Without them, it could be empty, and copies that still have the deleted keys would not be rebuilt.
    """
    return merged[0].base and len(merged) > 1


def _with_group(manifest: Manifest, group: KeyGroup, segments: tuple[Segment, ...]) -> Manifest:
    changed = {**manifest.segments, group: segments}
    return replace(manifest, next_sequence=manifest.next_sequence + 1, segments=changed)


def without_stores(manifest: Manifest, kept: Iterable[str]) -> tuple[Manifest, list[Segment]]:
    """Remove the stores that the topology no longer has; return the manifest and the segments to delete.

    The history is also cleared, so that every local copy is rebuilt and no copy keeps old content of a store that is later added again
    under the same name.
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
    return _of_new_history(replace(manifest, segments=left), sorted(names)), gone


def with_renamed_stores(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    """Rename stores; segments are not moved.

    The history is cleared, as in :func:`without_stores`: local copies use the old names and are rebuilt.

    Args:
        names: New name by old name of a store; names that the manifest does not have are ignored.
    """
    segments = {(renamed(store, names), group): own for (store, group), own in manifest.segments.items()}
    if segments.keys() == manifest.segments.keys():
        return manifest
    return _of_new_history(replace(manifest, segments=segments), sorted(names.items()))


def without_slices(manifest: Manifest, dropped: Collection[str]) -> tuple[Manifest, list[Segment]]:
    """Remove slices that have expired; return the manifest and the segments to delete.

    Stream time never decreases, so an expired slice never returns. Copies that still contain it drop it without a rebuild.
    """
    gone = [s for (store, _), group in manifest.segments.items() if store in dropped for s in group]
    left = {key: group for key, group in manifest.segments.items() if key[0] not in dropped}
    return replace(manifest, segments=left), gone


def rehomed(manifest: Manifest, before: Mapping[str, str], now: Mapping[str, str]) -> Manifest:
    """Clear the history if a store has moved to another store engine.

    Every local copy is then rebuilt. No copy lacks a store that has moved to its engine, or keeps the old content of a store that moves
    back.
    """
    moved = {store for store, engine in now.items() if before.get(store, engine) != engine}
    if not any(store_of(store) in moved for store, _ in manifest.segments):
        return manifest
    return _of_new_history(manifest, sorted(now.items()))


def _of_new_history(manifest: Manifest, why: object) -> Manifest:
    """Clear the history, so that no local copy is recognised; the next token depends on the old history and the reason."""
    token = f"{zlib.crc32(json.dumps([manifest.history, why]).encode()):08x}"
    return replace(manifest, history=(token,))


def catch_up(manifest: Manifest, copy: Version | None) -> list[tuple[KeyGroup, Segment]] | None:
    """Choose the segments that bring a local copy up to the manifest.

    Args:
        copy: The version of the local copy; None if it is empty.

    Returns:
        Segments in the order in which to apply them, or None if the copy cannot catch up: wipe the copy and call again with
        ``copy=None``.
    """
    if copy is None:
        return _in_order(manifest, -1)
    if not manifest.remembers(copy):
        return None
    needed = _in_order(manifest, copy.number)
    if any(segment.since > copy.number for _, segment in needed if segment.base):
        return None
    return needed


def _in_order(manifest: Manifest, number: int) -> list[tuple[KeyGroup, Segment]]:
    """Return the segments that reach beyond a version, by store, deepest key groups first."""
    groups = sorted(manifest.segments, key=lambda g: (g[0], -bits_of(g[1]), g[1]))
    return [(group, s) for group in groups for s in manifest.segments[group] if s.upto > number]


def why_restored(manifest: Manifest, copy: Version | None, why_empty: str) -> str:
    """Return why a local copy must be restored, as text for users; ``why_empty`` is the reason for an empty copy."""
    if copy is None:
        return why_empty
    if copy.number < 0:
        return "a full restore was interrupted"
    if not manifest.remembers(copy):
        return "the local copy belongs to an attempt that was not committed or to another checkpoint, or is too old"
    behind = f"the local copy is {manifest.version - copy.number} versions behind"
    if catch_up(manifest, copy) is None:
        return f"{behind} and lacks deletions that the log no longer contains"
    return f"{behind}, because applying changes was interrupted" if copy.toward else behind


def encode_manifest(manifest: Manifest, extra: Mapping[str, Any]) -> bytes:
    """Encode a manifest, with other data that the task persists."""
    return json.dumps({"log": manifest.to_json(), **extra}, separators=(",", ":")).encode()


def decode_manifest(data: bytes | None) -> tuple[Manifest, dict[str, Any]]:
    """Decode the result of :func:`encode_manifest`. None, for a new task, decodes to an empty manifest."""
    if data is None:
        return Manifest(), {}
    decoded = json.loads(data)
    return Manifest.from_json(decoded.pop("log")), decoded
