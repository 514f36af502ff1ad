"""The records of the benchmark, seeded, and a producer that is faster than what it feeds.

The embedded broker's own ``produce`` notes every acknowledgement, which tests want and ten million records do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

VALUE_BYTES = 80
SPAN_MS = 60_000
_SEED = 28
_BLOCK = 100_000


@dataclass(frozen=True)
class Workload:
    """Records in an order that the seed decides.

    Attributes:
        records: How many.
        keys: How many different keys they are drawn from, evenly.
        seed: Another seed, other records.
        begin_ms: Timestamp of the first record, ms since the epoch; they spread evenly over a minute, in order. None leaves
            the timestamps to the producer.
    """

    records: int
    keys: int
    seed: int = _SEED
    begin_ms: int | None = None

    def blocks(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the keys and values, in blocks."""
        rng = np.random.default_rng(self.seed)
        for start in range(0, self.records, _BLOCK):
            size = min(_BLOCK, self.records - start)
            keys = rng.integers(0, self.keys, size).tolist()
            text = rng.integers(ord("a"), ord("z") + 1, size * VALUE_BYTES, dtype=np.uint8).tobytes()
            values = (text[begin : begin + VALUE_BYTES] for begin in range(0, len(text), VALUE_BYTES))
            yield [(key_bytes(key), value) for key, value in zip(keys, values, strict=True)]

    def timestamps(self) -> Iterator[int]:
        """Return the timestamp of each record, 0 where the producer sets it."""
        if self.begin_ms is None:
            return repeat(0, self.records)
        return (self.begin_ms + number * SPAN_MS // self.records for number in range(self.records))


def rows_topic(source: str) -> str:
    """Return the name of the topic of the table that the records of a topic are joined with."""
    return f"{source}-rows"


def rows(workload: Workload) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the table that a workload is joined with: a row for each of its keys, in blocks."""
    for start in range(0, workload.keys, _BLOCK):
        numbers = range(start, min(start + _BLOCK, workload.keys))
        yield [(key_bytes(number), row_bytes(number)) for number in numbers]


def row_bytes(number: int) -> bytes:
    """Return the row of the key with a number."""
    return b"row-%08d" % number


def key_bytes(number: int) -> bytes:
    """Return the key with a number."""
    return b"key-%08d" % number


def produce(
    servers: str,
    topic: str,
    blocks: Iterable[list[tuple[bytes, bytes]]],
    timestamps: Iterable[int] | None = None,
) -> None:
    """Write records and return when all are acknowledged; keys land where Java's producer would put them.

    Args:
        servers: Bootstrap servers.
        topic: Where to write.
        blocks: Lists of keys and values.
        timestamps: Of each record, ms since the epoch; 0, or None for all, is the time when it is produced.

    Raises:
        RuntimeError: If a record is not acknowledged.
    """
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "batch.num.messages": 10_000,
            "batch.size": 1_000_000,
            "max.in.flight": 1,
            "queue.buffering.max.messages": 2_000_000,
            "delivery.report.only.error": True,
            "on_delivery": note,
            "log_level": 0,
        }
    )
    times = repeat(0) if timestamps is None else timestamps
    for block in blocks:
        for (key, value), timestamp in zip(block, times):
            while True:
                try:
                    producer.produce(topic, value, key, timestamp=timestamp)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    producer.flush()
    if failures:
        raise RuntimeError(
            f"{len(failures)} records were not written to {topic}; the first error: {failures[0]}"
        )
