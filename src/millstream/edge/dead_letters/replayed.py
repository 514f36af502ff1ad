"""How far a replay is: one position per partition, and what was replayed beyond it.

A replay with filters leaves letters out, so an offset alone cannot say which letters were replayed. The group's committed offset is
that of the first letter that was not, and the metadata of the commit lists what was replayed beyond it. So the lag of the group is
right for Kafka's tools, and a letter is replayed once, whatever the filters of the replays were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millstream.core.model.errors import MillstreamError

MOST_METADATA: Final = 4000
"""Limit of metadata, characters; a broker takes 4096 bytes (``offset.metadata.max.bytes``)."""
_FORMAT: Final = "replayed:"
_RUNS: Final = re.compile(r"(?:\d+\+\d+(?:,\d+\+\d+)*)?")


@dataclass(frozen=True)
class Replayed:
    """The replayed letters of a partition.

    Attributes:
        position: All before this offset were replayed.
        beyond: Replayed ranges after it: first offset, and the one after the last; ascending, with gaps.

    Example:
        >>> some = Replayed().with_range(0, 10, left=[3, 7])
        >>> some
        Replayed(position=3, beyond=((4, 7), (8, 10)))
        >>> 3 in some, 4 in some, some.metadata()
        (False, True, 'replayed:1+3,1+2')
        >>> Replayed.read(3, some.metadata()) == some
        True
        >>> some.with_range(3, 4)
        Replayed(position=7, beyond=((8, 10),))
    """

    position: int = 0
    beyond: tuple[tuple[int, int], ...] = ()

    def __contains__(self, offset: int) -> bool:
        return offset < self.position or any(first <= offset < end for first, end in self.beyond)

    def with_range(self, start: int, end: int, left: Iterable[int] = ()) -> Replayed:
        """Add a range that was processed.

        Args:
            left: Its offsets that were not replayed.
        """
        ranges = [(0, self.position), *self.beyond]
        for offset in sorted(left):
            ranges.append((start, offset))
            start = offset + 1
        ranges.append((start, end))
        merged: list[tuple[int, int]] = []
        for first, after in sorted(each for each in ranges if each[0] < each[1]):
            if merged and first <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], after)
            else:
                merged.append((first, after))
        if merged and merged[0][0] == 0:
            return Replayed(merged[0][1], tuple(merged[1:]))
        return Replayed(0, tuple(merged))

    def metadata(self) -> str:
        """Return the metadata to commit with the position; :meth:`read` decodes it.

        Raises:
            MillstreamError: If it is too long for a commit.
        """
        parts, last = [], self.position
        for first, end in self.beyond:
            parts.append(f"{first - last}+{end - first}")
            last = end
        text = _FORMAT + ",".join(parts) if parts else ""
        if len(text) > MOST_METADATA:
            raise MillstreamError(
                f"{len(parts)} ranges of dead letters after offset {self.position} were replayed separately, which is more than the group can record. Replays "
                "until now are recorded. Replay the dead letters between them, too, or continue with another --group"
            )
        return text

    @classmethod
    def read(cls, position: int, metadata: str) -> Replayed:
        """Decode a committed position; of another tool's metadata, only the position counts."""
        text = metadata.removeprefix(_FORMAT)
        if text == metadata or not _RUNS.fullmatch(text):
            return cls(position)
        beyond, last = [], position
        for run in filter(None, text.split(",")):
            gap, length = map(int, run.split("+"))
            beyond.append((last + gap, last + gap + length))
            last += gap + length
        return cls(position, tuple(beyond))
