"""Loaded: the functions and options that a station has unpickled, as many as were used lately.

A function is sent once and then goes by its digest, so what it keeps (a session of an HTTP client, say) lives as long as it is used.
A program that makes a new function for each call would fill the memory of a station with them: so those that have not been asked for
longest are forgotten. Whoever asks for one again is asked to send it again. Calls that wait or run have their functions in hand.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from typing import Any, Final

_MOST: Final = 1_000


class Loaded:
    """What is loaded. Owned by the station.

    Args:
        most: How many are kept, beside those that are needed at the moment.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.by_digest: dict[bytes, Any] = {}
        """Functions and options, the one that was needed longest ago first."""

    def load(self, pickles: Mapping[bytes, bytes]) -> None:
        """Unpickle what is not known."""
        for digest, data in pickles.items():
            if digest not in self.by_digest:
                self.by_digest[digest] = pickle.loads(data)

    def missing(self, needed: Collection[bytes]) -> frozenset[bytes]:
        """Return the digests of what is needed and not known; what is known counts as used now."""
        known = self.by_digest
        for digest in needed:
            if digest in known:
                known[digest] = known.pop(digest)
        for digest in list(known)[: max(len(known) - max(self._most, len(needed)), 0)]:
            del known[digest]
        return frozenset(digest for digest in needed if digest not in known)
