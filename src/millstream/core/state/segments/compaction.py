"""Selects the segments that a micro-batch compacts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.core.state.segments.key_groups import MORE_BITS, WHOLE_STORE, KeyGroup, bits_of, groups_above
from millstream.core.state.segments.log import Manifest, Segment, Step

LARGEST_BYTES = 2 << 20
LARGEST_CHANGES = 32_768
"""Size in bytes and in changes above which a key group is split. One step reads about twice as much, in 0.1 s."""
_TOO_FEW_TO_SPLIT = 1024
"""A key group below the whole store with fewer changes is not split for its bytes alone: a few large values stay together."""
_MOVED_DOWN_AT = 4
"""A split key group moves its changes down when they reach 1/n of the largest size."""

_MAX_SEGMENTS = 12
"""Number of segments of a key group above which the small ones are merged even if they are smaller than the base."""
_MOST_BITS = 30
"""Number of checksum bits at which a key group is no longer split."""
_MERGED_PER_CHANGE = 6
"""Changes that a micro-batch merges for each one that it has written, if enough steps are due. A store of millions of keys needs about
five; with fewer, its log would grow without limit."""


def due_for_compaction(manifest: Manifest, budget: int) -> Iterator[Step]:
    """Yield the compaction steps of this micro-batch, key groups with the most segments first.

    The steps merge about six times as many changes as the micro-batch has written. A step that merges n times as many waits for one of
    n micro-batches. So a micro-batch costs as much after a large load, when many steps are due, as at any other time.

    Args:
        manifest: The manifest, with the segments of this micro-batch.
        budget: Limit for the bytes of segments to read. At least one step is chosen if the limit for changes allows it.
    """
    below, version = _changes_below(manifest), manifest.version
    due, written = [], 0
    for group, segments in manifest.segments.items():
        if segments and segments[-1].upto == version:
            written += segments[-1].changes
        step = (
            _collecting(group, segments, below[group])
            if group in below
            else _merge_step(group, segments, version)
        )
        if step is not None:
            due.append((len(segments), *_weight(step.merged), step))
    most = max(_MERGED_PER_CHANGE * written, LARGEST_CHANGES // _MOVED_DOWN_AT, 1)
    spent = merged = 0
    for _, size, changes, step in sorted(due, key=lambda d: (-d[0], d[1])):
        if merged > most or (spent and spent + size > budget):
            return
        if changes > most and version % -(-changes // most):
            continue
        spent += size
        merged += changes
        yield step


def are_few(size: int, changes: int) -> bool:
    """Return whether changes stay in a key group that has been split, instead of moving down.

    Args:
        size: Their size in bytes.
    """
    return size * _MOVED_DOWN_AT < LARGEST_BYTES and changes * _MOVED_DOWN_AT < LARGEST_CHANGES


def due_before_appending(manifest: Manifest, group: KeyGroup) -> Step | None:
    """Return the step that must run before changes are appended to a key group below the whole store.

    It moves the changes of the whole store down, because deeper key groups hold older changes.
    """
    store, number = group
    above = () if number == WHOLE_STORE else manifest.segments.get((store, WHOLE_STORE), ())
    return Step((store, WHOLE_STORE), above, split=True) if above else None


def _merge_step(group: KeyGroup, segments: tuple[Segment, ...], version: int) -> Step | None:
    """Merge with the base if the changes outweigh it or touch half as many keys; otherwise merge only the newest, if too many.

    A single segment with changes is merged with the base once a micro-batch does not write to the key group. Otherwise, every micro-batch
    that writes to all keys would also merge all of them.
    """
    if len(segments) < 2:
        return None
    first, rest = segments[0], segments[1:]
    size, touched = _weight(rest)
    outweigh = size >= first.size or 2 * touched >= first.changes > 0
    if outweigh and (len(segments) >= 3 or segments[-1].upto < version):
        return Step(group, segments, _too_large(group, segments))
    return Step(group, _newest(rest), split=False) if len(segments) > _MAX_SEGMENTS else None


def _changes_below(manifest: Manifest) -> dict[KeyGroup, int]:
    """Return the number of changes below each key group that has been split."""
    below: dict[KeyGroup, int] = {}
    for (store, number), segments in manifest.segments.items():
        changes = sum([segment.changes for segment in segments])
        for upper in groups_above(number):
            below[store, upper] = below.get((store, upper), 0) + changes
    return below


def _collecting(group: KeyGroup, segments: tuple[Segment, ...], below: int) -> Step | None:
    """Move changes down if there are enough, or half as many as below; otherwise merge the newest if there are too many segments.

    Without the second condition, a few deletions would keep large values in the log.
    """
    size, touched = _weight(segments)
    if not are_few(size, touched) or 2 * touched >= below > 0:
        return Step(group, segments, split=True)
    return Step(group, _newest(segments), split=False) if len(segments) > _MAX_SEGMENTS else None


def _newest(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Return the oldest segment that is not larger than all later ones together, and these; or the two newest segments.

    Otherwise the changes of hundreds of micro-batches would be merged again with those of each next dozen.
    """
    later, start = segments[-1].size, len(segments) - 2
    for place in range(len(segments) - 2, -1, -1):
        if segments[place].size <= later:
            start = place
        later += segments[place].size
    return segments[start:]


def _too_large(group: KeyGroup, segments: tuple[Segment, ...]) -> bool:
    size, touched = _weight(segments)
    many = touched >= _TOO_FEW_TO_SPLIT or group[1] == WHOLE_STORE
    large = touched > LARGEST_CHANGES or (size > LARGEST_BYTES and many)
    return large and bits_of(group[1]) + MORE_BITS <= _MOST_BITS


def _weight(segments: Sequence[Segment]) -> tuple[int, int]:
    return sum([segment.size for segment in segments]), sum([segment.changes for segment in segments])
