"""Global copy: what a host holds of a global store, and how far into the topic that goes.

A global store has no log: its topic is its log. So the version of a copy of it is a place in the topic, its *progress*: per
partition the first offset that is not in the content. The progress lies in the copy itself, in a byte store of its own, and
is written in the same transaction as the content; a copy that was cut off between two transactions is recognised by its
version.

A micro-batch says to which offsets the store is filled in it. A copy that is behind them goes on from where it is; one that
is beyond them, or holds something else, is filled again from the beginning of the topic. Nothing is undone: what a key held
before a change is in the topic.
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
"""Why a copy is filled that can go on from where it is, for people."""
CUT_OFF: Final = "it was cut off while it was written"
"""Why a copy is filled from the beginning that is not empty and has no progress, for people."""
_OTHER: Final = "its topic was created again, or the types of the store have changed"
_BEYOND: Final = "it is ahead of the micro-batch, which belongs to an earlier time"


@dataclass(frozen=True)
class Progress:
    """How far a global copy goes.

    Attributes:
        identity: What is copied: topic and types. A copy of something else is of no use.
        positions: Per partition the first offset that is not in the content.
        remembered: What the global task remembers from one filling to the next, as what JSON can say.
    """

    identity: str
    positions: Mapping[int, int] = field(default_factory=dict)
    remembered: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        """The version of a copy with this progress: its number is the number of offsets that went into it."""
        return Version(sum(self.positions.values()), _token(self.to_bytes()))

    def to_bytes(self) -> bytes:
        """Write the progress for the copy."""
        positions = {str(partition): at for partition, at in sorted(self.positions.items())}
        told = {"identity": self.identity, "positions": positions, "remembered": self.remembered}
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Progress:
        """Read what :meth:`to_bytes` gave.

        Example:
            >>> Progress.from_bytes(Progress("products", {0: 7}).to_bytes()).positions
            {0: 7}
        """
        told = json.loads(data)
        positions = {int(partition): at for partition, at in told["positions"].items()}
        return cls(told["identity"], positions, told["remembered"])


def progress_store(store: str) -> str:
    """Give the name of the byte store that holds the progress of a global store's copy."""
    return f"{store}/progress"


def with_progress(store: str, progress: Progress) -> dict[str, list[tuple[bytes, bytes | None]]]:
    """Give the change that writes the progress; the last one in a transaction."""
    return {progress_store(store): [(_PROGRESS, progress.to_bytes())]}


def progress_of(store: str, version: Version | None, view: ByteStores) -> Progress | None:
    """Give the progress of a copy, None if its content is not that of one moment.

    Args:
        store: The global store.
        version: The version of the copy; one that was cut off in the middle has another one than its progress.
        view: The content.
    """
    stored = None if version is None else view.open(progress_store(store)).get(_PROGRESS)
    if version is None or stored is None or version.toward or version.token != _token(stored):
        return None
    return Progress.from_bytes(stored)


def _token(stored: bytes) -> str:
    return f"{zlib.crc32(stored):08x}"


def why_begun_anew(held: Progress, identity: str, planned: Mapping[int, int]) -> str | None:
    """Say why a copy cannot go on from where it is, for people; None if it can.

    Args:
        held: Its progress.
        identity: What it should be a copy of.
        planned: Per partition the offset it is to be filled to.

    Example:
        >>> why_begun_anew(Progress("t", {0: 7}), "t", {0: 9, 1: 3}) is None
        True
        >>> why_begun_anew(Progress("t", {0: 7}), "t", {0: 5})
        'it is ahead of the micro-batch, which belongs to an earlier time'
    """
    if held.identity != identity:
        return _OTHER
    beyond = any(at > planned.get(partition, 0) for partition, at in held.positions.items())
    return _BEYOND if beyond else None
