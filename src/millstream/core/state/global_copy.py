"""Global copy: a host's local copy of a global store, and its position in the topic.

A global store has no log, because its topic is its log. The version of a copy is therefore its *progress*: for each partition,
the first offset that is not yet in the content. The progress is kept in the copy, in a separate byte store, and is written in
the same transaction as the content; a copy whose update was interrupted between two transactions is recognised by its version.

A micro-batch states the offsets up to which the store must be filled. A copy that is behind them continues from its position;
a copy that is ahead of them, or has another identity, is refilled from the beginning of the topic. Changes are never undone:
earlier values of a key can be read again from the topic.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millstream.core.ports import ByteStores, Version

_PROGRESS: Final = b"progress"

BEHIND: Final = "its topic has more records"
"""Reason, shown to users, for filling a copy that continues from its position."""
CUT_OFF: Final = "it was cut off while it was written"
"""Reason, shown to users, for refilling a copy from the beginning that is not empty but has no progress."""
_OTHER: Final = "its topic was created again, or the types of the store have changed"
_BEYOND: Final = "it is ahead of the micro-batch, which belongs to an earlier time"


@dataclass(frozen=True)
class CopyProgress:
    """Position of a global copy in its topic.

    Attributes:
        identity: Topic and types that are copied. A copy with another identity is useless.
        positions: For each partition, the first offset that is not in the content.
        remembered: State of the global task between two fills, JSON-compatible.
    """

    identity: str
    positions: Mapping[int, int] = field(default_factory=dict)
    remembered: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        """Version of a copy with this progress: its number is the number of offsets that have been read."""
        return Version(sum(self.positions.values()), _token(self.to_bytes()))

    def to_bytes(self) -> bytes:
        positions = {str(partition): position for partition, position in sorted(self.positions.items())}
        data = {"identity": self.identity, "positions": positions, "remembered": self.remembered}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CopyProgress:
        """Decode the result of :meth:`to_bytes`.

        Example:
            >>> CopyProgress.from_bytes(CopyProgress("products", {0: 7}).to_bytes()).positions
            {0: 7}
        """
        decoded = json.loads(data)
        positions = {int(partition): position for partition, position in decoded["positions"].items()}
        return cls(decoded["identity"], positions, decoded["remembered"])


def progress_store(store: str) -> str:
    return f"{store}/progress"


def with_progress(store: str, progress: CopyProgress) -> dict[str, list[tuple[bytes, bytes | None]]]:
    """Return the change that writes the progress; it must come last in a transaction."""
    return {progress_store(store): [(_PROGRESS, progress.to_bytes())]}


def progress_of(store: str, version: Version | None, view: ByteStores) -> CopyProgress | None:
    """Return the progress of a copy, or None if its content is not consistent.

    Args:
        version: Version of the copy; after an interrupted update it does not match the progress.
    """
    stored = None if version is None else view.open(progress_store(store)).get(_PROGRESS)
    if version is None or stored is None or version.toward or version.token != _token(stored):
        return None
    return CopyProgress.from_bytes(stored)


def _token(stored: bytes) -> str:
    return f"{zlib.crc32(stored):08x}"


def why_begun_anew(progress: CopyProgress, identity: str, planned: Mapping[int, int]) -> str | None:
    """Return why a copy cannot continue from its position, as text for users; None if it can.

    Args:
        planned: For each partition, the offset up to which to fill the copy.

    Example:
        >>> why_begun_anew(CopyProgress("t", {0: 7}), "t", {0: 9, 1: 3}) is None
        True
        >>> why_begun_anew(CopyProgress("t", {0: 7}), "t", {0: 5})
        'it is ahead of the micro-batch, which belongs to an earlier time'
    """
    if progress.identity != identity:
        return _OTHER
    beyond = any(position > planned.get(partition, 0) for partition, position in progress.positions.items())
    return _BEYOND if beyond else None
