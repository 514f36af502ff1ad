"""Changelog topics: write the changes of a store as Kafka records, and read them back.

A store with ``changelog="kafka"`` publishes its changes to the topic ``<application>-<store>-changelog``. Task ``n`` of the
sub-topology writes to partition ``n``. The topic is compacted: it keeps the newest value of every key, which is enough to restore
the store if both the checkpoint and the local state are lost (KIP-28, "Local State Management").

The changelog of a plain key-value store has the format of Kafka Streams: key, value, and the timestamp of the entry as the timestamp
of the record. A store that consists of several byte stores (slices, indexes) prefixes each key with the name of the byte store. Its
records carry the wall-clock time of the micro-batch: with ``cleanup.policy=delete``, the broker must not delete entries that are old in
stream time but were written recently.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from millstream.core.model.record import Headers, Records
from millstream.core.ports import StoreChange, slice_name
from millstream.core.topology.stores import KeyValueSpec, StoreSpec

_STAMP: Final = struct.Struct(">q")
_AT_ZERO: Final[Headers] = (("timestamp", b"0"),)
"""Kafka clients read timestamp 0 as "now". This header marks a record whose entry has timestamp 0."""


def to_records(
    spec: StoreSpec, byte_store: str, changes: Iterable[StoreChange], partition: int, now_ms: int
) -> Records:
    """Encode changes of a byte store as records of the changelog topic.

    Args:
        partition: Partition of the topic, equal to the number of the task.
    """
    keys, values = map(list, zip(*changes))
    if not _is_plain(spec):
        named = _prefix(spec, byte_store)
        records = Records([named + key for key in keys], values, [now_ms] * len(keys))
    elif spec.timestamped:
        records = _stamped(keys, values, now_ms)
    else:
        records = Records(keys, values, [now_ms] * len(keys))
    records.partitions = [partition] * len(keys)
    return records


def from_records(spec: StoreSpec, records: Records) -> dict[str, list[StoreChange]]:
    """Decode records written by :func:`to_records` into changes by byte store."""
    if _is_plain(spec):
        values = _with_stamps(records) if spec.timestamped else records.values
        return {spec.name: list(zip(_null_as_empty(records.keys), values))}
    changes_of: dict[str, list[StoreChange]] = {}
    for key, value in zip(_null_as_empty(records.keys), records.values):
        end = 1 + key[0]
        suffix = key[1:end].decode()
        name = f"{spec.name}/{suffix}" if suffix else spec.name
        changes_of.setdefault(name, []).append((key[end:], value))
    return changes_of


def is_live(spec: StoreSpec, byte_store: str, memory: Mapping[str, Any]) -> bool:
    """Return whether a store with this memory still has the byte store. The topic may also contain records of expired slices."""
    if "slices" not in memory or "/" not in byte_store:
        return True
    suffix = byte_store.removeprefix(f"{spec.name}/")
    return not suffix.isdigit() or any(
        slice_name(spec.name, start) == byte_store for start, _ in memory["slices"]
    )


def _is_plain(spec: StoreSpec) -> bool:
    return isinstance(spec, KeyValueSpec) and spec.ttl_ms is None


def _prefix(spec: StoreSpec, byte_store: str) -> bytes:
    suffix = byte_store.removeprefix(spec.name).removeprefix("/").encode()
    return bytes([len(suffix)]) + suffix


def _stamped(keys: list[bytes | None], values: list[bytes | None], now_ms: int) -> Records:
    stamps = [now_ms if value is None else _STAMP.unpack_from(value)[0] for value in values]
    headers = [() if stamp else _AT_ZERO for stamp in stamps] if 0 in stamps else None
    return Records(keys, [value if value is None else value[8:] for value in values], stamps, headers=headers)


def _with_stamps(records: Records) -> list[bytes | None]:
    stamps = records.timestamps
    if records.headers is not None:
        stamps = [0 if headers == _AT_ZERO else t for t, headers in zip(stamps, records.headers)]
    return [None if value is None else _STAMP.pack(t) + value for value, t in zip(records.values, stamps)]


def _null_as_empty(keys: list[bytes | None]) -> list[bytes]:
    return [key if key is not None else b"" for key in keys]
