"""Parked changes: the segments of a micro-batch, for the file next to a local copy.

They are the segments that the log receives, before compression. Format, little endian:

    length of the head (4) | head | segments of the byte stores

The head is also a segment, with one entry: JSON with the names of the byte stores, the lengths of their segments, and the dropped
byte stores. Every part therefore has a checksum (see ``millstream.core.state.segments.segment``), which reveals a truncated or
overwritten file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import accumulate, chain, pairwise

from millstream.core.model.errors import StoreError
from millstream.core.ports import Segments
from millstream.core.state.segments import segment

_HEAD = b"segments"


def encode(changes: Segments, dropped: Collection[str]) -> Iterable[bytes]:
    """Return the content of the file, in parts."""
    sizes = [[store, [len(part) for part in parts]] for store, parts in changes.items()]
    header = {"stores": sizes, "dropped": sorted(dropped)}
    head = segment.encode([(_HEAD, json.dumps(header).encode())])
    return chain((len(head).to_bytes(4, "little"), head), *changes.values())


def decode(data: bytes) -> tuple[Segments, Collection[str]]:
    """Return the segments in the content of a file, which are not verified, and the dropped byte stores.

    Raises:
        StoreError: If the head is damaged.
    """
    start = 4 + int.from_bytes(data[:4], "little")
    head = segment.decode(data[4:start], "parked changes")
    if len(head) != 1 or head[0][0] != _HEAD or head[0][1] is None:
        raise StoreError("parked changes have no head")
    header = json.loads(head[0][1])
    changes: dict[str, list[bytes]] = {}
    for store, sizes in header["stores"]:
        ends = list(accumulate(sizes, initial=start))
        changes[store] = [data[first:last] for first, last in pairwise(ends)]
        start = ends[-1]
    return changes, header["dropped"]
