"""Global copy: the local copy of a global store on a host, and its position in the topic.

A global store has no log, because its topic is its log. The version of a copy is therefore its *progress*: for each partition, the
first offset that the content does not yet include. The progress is stored in the copy, in a separate byte store, in the same
transaction as the content. The version reveals a copy whose update was interrupted between two transactions.

A micro-batch specifies the offsets up to which the store must be filled. A copy that is behind these offsets continues from its
position. A copy that is ahead of them, or has another identity, is refilled from the beginning of the topic. Changes are never
undone, because earlier values of a key can be read from the topic again.
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
CUT_OFF: Final = "writing it was interrupted"
"""Reason, shown to users, for refilling a copy that has content but no progress."""
DELETED: Final = "its topic no longer has the records that follow"
"""Reason, shown to users, for refilling a copy that is behind the beginning of its topic."""
_OTHER: Final = "its topic was created again, or the types of the store have changed"
_BEYOND: Final = "it is ahead of the micro-batch, which is an earlier one"


@dataclass(frozen=True)
class CopyProgress:
    """Position of a global copy in its topic.

    Attributes:
        identity: Topic and types of the copied records. A copy with another identity cannot be used.
        positions: For each partition, the first offset that the content does not include.
        remembered: JSON-compatible state of the global task between two fills.
    """

    identity: str
    positions: Mapping[int, int] = field(default_factory=dict)
    remembered: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> Version:
        """Version of a copy with this progress. Its number is the count of offsets read."""
        return Version(sum(self.positions.values()), _token(self.to_bytes()))

    def to_bytes(self) -> bytes:
        positions = {str(partition): position for partition, position in sorted(self.positions.items())}
        data = {"identity": self.identity, "positions": positions, "remembered": self.remembered}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CopyProgress:
        """Decode the result of :meth:`to_bytes`."""
        decoded = json.loads(data)
        positions = {int(partition): position for partition, position in decoded["positions"].items()}
        return cls(decoded["identity"], positions, decoded["remembered"])


def progress_store(store: str) -> str:
    return f"{store}/progress"


def with_progress(store: str, progress: CopyProgress) -> dict[str, list[tuple[bytes, bytes | None]]]:
    """Return the change that writes the progress. It must be the last change of a transaction."""
    return {progress_store(store): [(_PROGRESS, progress.to_bytes())]}


def progress_of(store: str, version: Version | None, view: ByteStores) -> CopyProgress | None:
    """Return the progress of a copy, or None if its content is not consistent.

    Args:
        version: Version of the copy. After an interrupted update it does not match the progress.
    """
    stored = None if version is None else view.open(progress_store(store)).get(_PROGRESS)
    if version is None or stored is None or version.toward or version.token != _token(stored):
        return None
    return CopyProgress.from_bytes(stored)


def _token(stored: bytes) -> str:
    return f"{zlib.crc32(stored):08x}"


def why_begun_anew(progress: CopyProgress, identity: str, planned: Mapping[int, int]) -> str | None:
    """Return why a copy cannot continue from its position, as text for users, or None if it can.

    Args:
        planned: For each partition, the offset up to which to fill the copy.
    """
    if progress.identity != identity:
        return _OTHER
    beyond = any(position > planned.get(partition, 0) for partition, position in progress.positions.items())
    return _BEYOND if beyond else None
