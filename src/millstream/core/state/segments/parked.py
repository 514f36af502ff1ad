"""Parked changes: the encoded changes of a micro-batch, for the file next to a local copy.

Format, little endian:

    length of the head (4) | head | one segment per byte store

The head is also a segment, with one entry: JSON with the names of the byte stores, the lengths of their segments, and the dropped
byte stores. Every part therefore has a checksum (see ``millstream.core.state.segments.segment``), which reveals a truncated or
overwritten file.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from millstream.core.model.errors import StoreError
from millstream.core.ports import Changes, ParkedChanges
from millstream.core.state.segments import segment

_HEAD = b"head"


def encode(changes: Changes, dropped: Collection[str]) -> bytes:
    """Encode the changes of a micro-batch."""
    parts = {store: segment.encode(items) for store, items in changes.items()}
    header = {"stores": [[store, len(part)] for store, part in parts.items()], "dropped": sorted(dropped)}
    head = segment.encode([(_HEAD, json.dumps(header).encode())])
    return b"".join((len(head).to_bytes(4, "little"), head, *parts.values()))


def decode(data: bytes) -> ParkedChanges:
    """Decode the result of :func:`encode`.

    Raises:
        StoreError: If the bytes are damaged.
    """
    start = 4 + int.from_bytes(data[:4], "little")
    head = segment.decode(data[4:start], "parked changes")
    if len(head) != 1 or head[0][0] != _HEAD or head[0][1] is None:
        raise StoreError("parked changes have no head")
    header = json.loads(head[0][1])
    changes = {}
    for store, size in header["stores"]:
        changes[store] = segment.decode(data[start : start + size], f"parked changes of store {store!r}")
        start += size
    return ParkedChanges(changes, header["dropped"])
