"""The progress of replays: one position per partition, and the ranges that were replayed beyond it.

A replay with filters skips dead letters, so one offset cannot express which were replayed. The group's committed offset is that of the
first dead letter that was not replayed; the commit's metadata lists the ranges that were replayed beyond it. Thus Kafka's tools show the
correct lag of the group, and each dead letter is replayed once, regardless of the filters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millstream.core.model.errors import MillstreamError

MOST_METADATA: Final = 4000
"""Maximum length of the metadata, characters. A broker accepts 4096 bytes (``offset.metadata.max.bytes``)."""
_FORMAT: Final = "replayed:"
_RUNS: Final = re.compile(r"(?:\d+\+\d+(?:,\d+\+\d+)*)?")


@dataclass(frozen=True)
class Replayed:
    """The replayed dead letters of a partition.

    Attributes:
        position: All dead letters before this offset were replayed.
        beyond: Replayed ranges after the position, as start and exclusive end; ascending, with gaps between them.

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
        """Return the progress with another range.

        Args:
            start: The first offset of the range.
            end: The end of the range, exclusive.
            left: Offsets in the range that were not replayed.
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
            MillstreamError: If the metadata is too long for a commit.
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
        """Decode a committed position. If another tool wrote the metadata, only the position counts."""
        text = metadata.removeprefix(_FORMAT)
        if text == metadata or not _RUNS.fullmatch(text):
            return cls(position)
        beyond, last = [], position
        for run in filter(None, text.split(",")):
            gap, length = map(int, run.split("+"))
            beyond.append((last + gap, last + gap + length))
            last += gap + length
        return cls(position, tuple(beyond))
