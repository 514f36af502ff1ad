"""Whether an output topic holds what it must: a fast wrong answer is no figure.

Expected are exactly as many records as must come out, and a *digest*: for counts the last value of every
key, which may be a key in a window or a session; for ``map`` and ``stream-table-join`` the sum of a checksum over all records, which does
not depend on their order across partitions.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, TopicPartition

from bench.jobs import GAP_MS, WINDOW_MS
from bench.load import Workload, rows

_SILENCE_S, _POLL_S = 20.0, 0.5
_BATCH = 10_000
_LONG = struct.Struct(">q")

_SUMMED = ("map", "stream-table-join")
"""Jobs whose outputs are added up; of the others the last value of each key counts."""

Pairs = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Digest:
    """What of an output can be compared.

    Attributes:
        records: Number of records.
        last: Last value per key; only for counts.
        checksum: Sum of the records' checksums; 0 for counts, whose intermediate values depend on nothing but order.
    """

    records: int
    last: Mapping[bytes, bytes]
    checksum: int


def expected(job: str, workload: Workload) -> Digest:
    """Compute a job's output plainly, without any stream processor."""
    pairs = (pair for block in workload.blocks() for pair in block)
    if job in ("count", "processor", "exactly-once-count"):
        counts = Counter(key for key, _ in pairs)
        return Digest(workload.records, {key: b"%d" % count for key, count in counts.items()}, 0)
    if job == "windowed-count":
        windows = (timestamp - timestamp % WINDOW_MS for timestamp in workload.timestamps())
        counts = Counter(key + _LONG.pack(start) for (key, _), start in zip(pairs, windows))
        return Digest(workload.records, {key: _LONG.pack(count) for key, count in counts.items()}, 0)
    if job == "session-count":
        return _sessions(workload)
    if job == "stream-table-join":
        table = dict(row for block in rows(workload) for row in block)
        return digest(job, ((key, b"%b:%b" % (value, table[key])) for key, value in pairs))
    return digest(job, ((key, value.decode().upper().encode()) for key, value in pairs))


def _sessions(workload: Workload) -> Digest:
    """Count by session; timestamps never decrease, so a record can only extend the newest session of its key."""
    records, newest, last = 0, dict[bytes, tuple[int, int, int]](), dict[bytes, bytes]()
    pairs = (pair for block in workload.blocks() for pair in block)
    for (key, _), timestamp in zip(pairs, workload.timestamps()):
        start, end, count = newest.get(key, (timestamp, timestamp, 0))
        if timestamp - end > GAP_MS:
            start, end, count = timestamp, timestamp, 0
        if count and (start, end) != (
            timestamp,
            timestamp,
        ):  # a session of more than this time is deleted, and put again
            last[_session(key, start, end)] = b""
            records += 1
        newest[key] = (start, timestamp, count + 1)
        last[_session(key, start, timestamp)] = _LONG.pack(count + 1)
        records += 1
    return Digest(records, last, 0)


def _session(key: bytes, start: int, end: int) -> bytes:
    return key + _LONG.pack(end) + _LONG.pack(start)


def digest(job: str, pairs: Pairs) -> Digest:
    """Digest an output, given in the order of each partition."""
    records, last, checksum = 0, dict[bytes, bytes](), 0
    for key, value in pairs:
        records += 1
        if job not in _SUMMED:
            last[key] = value
        else:
            checksum += zlib.crc32(value, zlib.crc32(key))
    return Digest(records, last, checksum)


def difference(found: Digest, wanted: Digest) -> str | None:
    """Return what is wrong with an output, None if nothing."""
    if found.records != wanted.records:
        return f"{found.records:,} records in the output instead of {wanted.records:,}"
    wrong = sum(found.last.get(key) != value for key, value in wanted.last.items())
    wrong += len(found.last.keys() - wanted.last.keys())
    if wrong:
        return f"wrong last value for {wrong:,} of {len(wanted.last):,} keys"
    if found.checksum != wanted.checksum:
        return "the records of the output are not the expected ones"
    return None


def ends(servers: str, topic: str) -> dict[int, int]:
    """Return the end offset of each partition of a topic."""
    consumer = Consumer(_reader(servers))
    try:
        partitions = consumer.list_topics(topic, timeout=_SILENCE_S).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SILENCE_S)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def wrong_output(
    job: str, wanted: Digest, servers: str, topic: str, begins: Mapping[int, int] | None = None
) -> str | None:
    """Return what is wrong with the output of a job in a topic, None if nothing; see :func:`read`."""
    return difference(digest(job, read(servers, topic, begins)), wanted)


def read(servers: str, topic: str, begins: Mapping[int, int] | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Read the records that a topic holds now, without what transactions leave beside records; nobody may write meanwhile.

    Args:
        servers: Bootstrap servers.
        topic: Name of the topic.
        begins: For each partition, where to begin, if not at 0.

    Raises:
        RuntimeError: If the broker sends nothing for a while.
    """
    end_offsets = ends(servers, topic)
    starts = {partition: (begins or {}).get(partition, 0) for partition in end_offsets}
    unfinished = {partition for partition, end in end_offsets.items() if end > starts[partition]}
    consumer = Consumer(_reader(servers))
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
        heard = time.monotonic()
        while unfinished:
            messages = consumer.consume(
                _BATCH, _POLL_S
            )  # returns when there are so many, or the time is over
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise RuntimeError(
                    f"topic {topic} gave nothing for {_SILENCE_S:.0f} s; not at the end of partitions {sorted(unfinished)}"
                )
            for message in messages:
                error = message.error()
                if error is None:
                    yield message.key() or b"", message.value() or b""
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
    finally:
        consumer.close()


def _reader(servers: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": servers,
        "group.id": "bench-check",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "log_level": 0,
    }
