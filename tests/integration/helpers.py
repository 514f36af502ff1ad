"""Helpers of the tests with a real broker: they create applications, write records and wait for conditions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer

import millstream as ms
from millstream.core.model.errors import FanOutError
from millstream.drivers.kafka.fanout.coordinator import Coordinator
from millstream.testing import EmbeddedKafka
from millstream.testing.crash.stream import transaction_is_open
from millstream.testing.kafka import ConsumedRecord, Payload

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]


class Apps:
    """Creates the applications of one test, all with the same id, state directory and checkpoint."""

    def __init__(self, kafka: EmbeddedKafka, name: str, home: Path) -> None:
        self.kafka = kafka
        self.id = name
        self.home = home
        self._started: list[ms.RunningApplication] = []

    @property
    def local_state(self) -> Path:
        """Where the local copies of the stores are."""
        return self.home / self.id / "tasks"

    def topic(self, name: str, partitions: int | None = None) -> str:
        """Create a topic for this test only."""
        topic = f"{self.id}-{name}"
        self.kafka.create_topic(topic, partitions)
        return topic

    def application(self, topology: ms.Topology, **settings: Any) -> ms.Application:
        """Create an application without starting it."""
        defaults = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "state_dir": self.home,
            "master": "local[2]",
            "statestore_cache_max_bytes": 0,  # most tests check every update; tests of caches set this
            "task_timeout_ms": 120_000,  # shorter than the test's timeout, so that the error names the cause
        }
        return ms.Application(self.id, topology, **{**defaults, **settings})

    def start(self, topology: ms.Topology, **settings: Any) -> ms.RunningApplication:
        """Start an application, which stops at the end of the test at the latest."""
        running = self.application(topology, **settings).start()
        self._started.append(running)
        return running

    def run(self, topology: ms.Topology, **settings: Any) -> ms.RunningApplication:
        """Process the records that are in the topics now."""
        return self.application(topology, **settings).run(until="end")

    def stop_all(self) -> None:
        """Stop the applications that still run."""
        for running in self._started:
            running.stop(timeout_s=10)


def eventually(holds: Callable[[], T], description: str, *, within_s: float = 60) -> T:
    """Wait until a condition holds, and return its value; the test fails if that takes too long."""
    deadline = time.monotonic() + within_s
    while not (now := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {within_s:.0f} s for {description}, but it is {now!r}")
        time.sleep(0.05)
    return now


def split_into(coordinator: Coordinator, ranges: int) -> None:
    """Change the number of ranges of partition 0; retry if producers that waited too long for processor time cancel the change."""

    def changed() -> bool:
        with suppress(FanOutError):
            return coordinator.change(0, ranges).history.current.ranges == ranges
        return False

    eventually(changed, f"{ranges} key ranges", within_s=120)


def values_by_key(
    records: Iterable[ConsumedRecord], value: ms.Serde[Any] = ms.serdes.string
) -> dict[str | None, list[Any]]:
    """Return the values of each key, in the order in which they were written."""
    found: dict[str | None, list[Any]] = {}
    for record in records:
        key = None if record.key is None else record.key.decode()
        found.setdefault(key, []).append(None if record.value is None else value.deserialize(record.value))
    return found


def latest(
    records: Iterable[ConsumedRecord], value: ms.Serde[Any] = ms.serdes.string
) -> dict[str | None, Any]:
    """Return the last value of each key."""
    return {key: values[-1] for key, values in values_by_key(records, value).items()}


def lag(kafka: EmbeddedKafka, group: str, topic: str) -> int:
    """Return the number of offsets of a topic that a group has not committed, according to the broker."""
    committed = kafka.committed(group, topic)
    return sum(end - committed.get(partition, 0) for partition, end in kafka.end_offsets(topic).items())


def committed_records(kafka: EmbeddedKafka, topic: str) -> list[ConsumedRecord]:
    """Read the committed records of a topic, after open transactions end: a marker may be written a moment after its commit."""
    eventually(
        lambda: not transaction_is_open(kafka, topic),
        f"transactions of {topic} to be complete",
    )
    return kafka.consume(topic, isolation="read_committed")


def written(kafka: EmbeddedKafka, topic: str) -> int:
    """Return the number of records (and markers) in a topic."""
    return sum(kafka.end_offsets(topic).values())


def produce_with_headers(
    kafka: EmbeddedKafka, topic: str, records: Iterable[tuple[Payload, Payload, int, Headers]]
) -> None:
    """Write records with headers, all to partition 0."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for key, value, timestamp, headers in records:
        producer.produce(topic, value, key, 0, timestamp=timestamp, headers=list(headers))
    assert producer.flush(30) == 0
