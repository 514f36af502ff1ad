"""Small ranges are read with a single assignment, with the same records as ranges that are read one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from millstream.core.model.errors import OffsetsLostError
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka import fetch, small_ranges
from millstream.drivers.kafka.fetch import KafkaFetcher
from millstream.testing import EmbeddedKafka

from .helpers import Apps

pytestmark = pytest.mark.broker

PARTITIONS = 24


@pytest.fixture
def poll_sizes() -> list[int]:
    """The number of messages that each poll requested."""
    return []


@pytest.fixture
def assigned(monkeypatch: pytest.MonkeyPatch, poll_sizes: list[int]) -> list[int]:
    """The number of partitions of each assignment."""
    sizes: list[int] = []

    class CountingConsumer(Consumer):
        def assign(self, partitions: list[Any]) -> None:
            sizes.append(len(partitions))
            super().assign(partitions)

        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
            poll_sizes.append(num_messages)
            return super().consume(num_messages, timeout)

    monkeypatch.setattr(fetch, "Consumer", CountingConsumer)
    return sizes


def columns(chunks: Iterator[Records]) -> list[tuple[Any, ...]]:
    return [(r.keys, r.values, r.timestamps, r.offsets, r.headers) for r in chunks]


def fill_topic(apps: Apps, seed: int) -> tuple[str, dict[int, int]]:
    """Write to a topic in transactions, some of them aborted; return the topic and the end offsets of its partitions."""
    rng, topic = random.Random(seed), apps.topic("in", PARTITIONS)
    producer = Producer({"bootstrap.servers": apps.kafka.bootstrap_servers, "transactional.id": apps.id})
    producer.init_transactions(60)
    for _ in range(6):
        producer.begin_transaction()
        for _ in range(60):
            value = b"%d" % rng.randrange(10**6)
            producer.produce(topic, value, b"k", rng.randrange(PARTITIONS), headers={"h": value})
        producer.flush(60)
        end = producer.abort_transaction if rng.random() < 0.4 else producer.commit_transaction
        end(60)
    return topic, apps.kafka.end_offsets(topic)


@pytest.mark.parametrize("read_committed", [True, False])
def test_ranges_read_together_have_the_records_of_ranges_read_alone(
    apps_without_spark: Apps, assigned: list[int], poll_sizes: list[int], read_committed: bool
) -> None:
    apps = apps_without_spark
    topic, ends = fill_topic(apps, 7)
    rng = random.Random(8)
    starts = {partition: rng.randrange(end + 1) for partition, end in ends.items()}
    ranges = [OffsetRange(topic, p, starts[p], rng.randint(starts[p], end)) for p, end in ends.items()]
    settings = {"bootstrap.servers": apps.kafka.bootstrap_servers}
    fetcher = KafkaFetcher(settings, apps.id, read_committed)
    together = [(planned, columns(records)) for planned, records in fetcher.fetch_all(ranges)]
    assert assigned == [PARTITIONS]
    assert poll_sizes[0] == sum(
        planned.end - planned.start for planned in ranges
    )  # a larger request would wait for messages that do not come
    assert together == [(planned, columns(fetcher.fetch(planned))) for planned in ranges]
    assert any(chunks for _, chunks in together)


def test_an_error_names_the_range_with_lost_offsets_and_other_ranges_are_read(
    apps_without_spark: Apps, assigned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_ranges, "_QUIET_S", 1.0)
    monkeypatch.setattr(fetch, "_QUIET_S", 1.0)
    apps, topic = apps_without_spark, apps_without_spark.topic("in", 2)
    apps.kafka.produce(topic, [("k", "v")] * 3, partition=0)
    ranges = [OffsetRange(topic, 0, 0, 3), OffsetRange(topic, 1, 0, 5)]
    settings = {"bootstrap.servers": apps.kafka.bootstrap_servers}
    reading = KafkaFetcher(settings, apps.id).fetch_all(ranges)
    assert [len(records) for records in next(reading)[1]] == [3]
    with pytest.raises(OffsetsLostError, match="ends at offset 0, but offsets up to 5"):
        list(next(reading)[1])
    assert assigned == [2, 1, 1]


def test_a_broker_that_does_not_answer_delays_reads_without_failing_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "_CONNECT_S", 0.5)
    with EmbeddedKafka(partitions=1) as broker:
        broker.create_topic("in")
        broker.produce("in", [("key", "value")])
        fetcher = KafkaFetcher({"bootstrap.servers": broker.bootstrap_servers}, "a-group-that-connects")
        broker.pause()
        fetcher.connect()
        broker.resume()
        assert [records.values for records in fetcher.fetch(OffsetRange("in", 0, 0, 1))] == [[b"value"]]


def test_groups_keep_the_order_of_ranges_and_contain_each_partition_at_most_once() -> None:
    a, b, c = OffsetRange("t", 0, 0, 5), OffsetRange("t", 1, 0, 5), OffsetRange("t", 0, 5, 9)
    large, empty = OffsetRange("t", 2, 0, 11), OffsetRange("t", 3, 4, 4)
    assert list(small_ranges.groups_of([a, b, c, large, empty], 10)) == [[a, b], [c], [large], [empty]]
    assert list(small_ranges.groups_of([], 10)) == []
