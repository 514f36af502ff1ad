"""A partition is split, split again and merged while an application on Spark reads it, and while the application is stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.drivers.kafka.fanout.coordinator import Coordinator
from millstream.drivers.kafka.fanout.key_range_producer import KeyRangeProducer
from proofs.sizes import sized

from .helpers import Apps, committed_records, eventually, latest, split_into

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

KEYS = [f"k{number}" for number in range(40)]

SETTINGS: dict[str, dict[str, Any]] = {
    "exactly-once": {"processing_guarantee": "exactly_once"},
    "key-ranges": {"isolation_level": "read_committed", "parallelism": 4},
    **sized(
        {},
        {
            "at-least-once": {"isolation_level": "read_committed"},
            "key-ranges-exactly-once": {"processing_guarantee": "exactly_once", "parallelism": 4},
            "repartitioned": {"isolation_level": "read_committed", "repartitioned": True},
        },
    ),
}
"""Settings of the applications; ``make soak`` has more of them."""


class Orders:
    """A topic with one partition, a producer of numbered orders per key, and changes of the fan-out."""

    def __init__(self, apps: Apps) -> None:
        self._apps = apps
        self.topic = apps.topic("orders", 1)
        settings: dict[str, Any] = {"bootstrap.servers": apps.kafka.bootstrap_servers}
        self._producer = KeyRangeProducer(settings, self.topic)
        self._coordinator = Coordinator(settings, self.topic)
        self.sent = 0

    def send(self, per_key: int) -> None:
        for number in range(self.sent, self.sent + per_key):
            for key in KEYS:
                self._producer.produce(self.topic, str(number), key)
        assert self._producer.flush(30) == 0
        self.sent += per_key

    def split(self, ranges: int) -> None:
        split_into(self._coordinator, ranges)

    def merge(self) -> None:
        self.split(1)

    def close(self) -> None:
        self._coordinator.close()
        self._producer.close()


@pytest.fixture
def orders(apps: Apps) -> Iterator[Orders]:
    instance = Orders(apps)
    yield instance
    instance.close()


def topology(apps: Apps, orders: Orders, *, repartitioned: bool) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream(orders.topic, fan_out=True)
    if repartitioned:
        stream = stream.select_key(lambda key, value: key.upper()).repartition(partitions=2)
    stream.to(apps.topic("copies", 1))
    stream.group_by_key().count(store="counts").to_stream().to(apps.topic("counts", 1), value=ms.serdes.int64)
    return builder.build()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_every_record_is_counted_once_and_each_key_in_order(
    apps: Apps, orders: Orders, settings: dict[str, Any]
) -> None:
    settings = dict(settings)
    repartitioned = settings.pop("repartitioned", False)
    read = topology(apps, orders, repartitioned=repartitioned)

    def counts() -> set[int]:
        return set(latest(committed_records(apps.kafka, f"{apps.id}-counts"), ms.serdes.int64).values())

    orders.send(5)
    orders.split(3)
    orders.send(5)
    running = apps.start(read, metadata_max_age_ms=300_000, **settings)
    eventually(lambda: counts() == {10}, "records before and after a split", within_s=180)
    orders.send(5)
    orders.split(5)
    orders.send(5)
    orders.split(2)
    orders.send(5)
    eventually(lambda: counts() == {25}, "records of further splits", within_s=180)
    orders.merge()
    orders.send(5)
    eventually(lambda: counts() == {30}, "records after the merge", within_s=180)
    running.stop()
    orders.send(5)
    orders.split(2)
    orders.send(5)
    orders.merge()
    orders.send(5)
    apps.run(read, **settings)
    assert counts() == {45}
    numbers = defaultdict(list)
    for record in committed_records(apps.kafka, f"{apps.id}-copies"):
        numbers[record.key].append(int(record.value or b""))
    assert len(numbers) == len(KEYS)
    assert all(of_key == list(range(45)) for of_key in numbers.values()), numbers


def test_an_application_without_fan_out_does_not_start_on_a_split_partition(
    apps: Apps, orders: Orders
) -> None:
    orders.split(2)
    builder = ms.StreamsBuilder()
    builder.stream(orders.topic).to(apps.topic("copies", 1))
    with pytest.raises(TopologyError, match=f"Read topic '{orders.topic}' with fan_out=True"):
        apps.start(builder.build())


def test_results_are_written_by_key_range_while_the_partition_is_split_and_merged(
    apps: Apps, orders: Orders
) -> None:
    source, copies = apps.topic("numbers", 2), apps.topic("copies", 1)
    builder = ms.StreamsBuilder()
    builder.stream(source).to(orders.topic, fan_out=True)
    builder.stream(orders.topic, fan_out=True).to(copies)
    running = apps.start(builder.build(), isolation_level="read_committed")
    for number, ranges in enumerate((1, 3, 2, 1)):
        orders.split(ranges)
        apps.kafka.produce(source, [(key, str(number)) for key in KEYS])
    eventually(
        lambda: len(apps.kafka.consume(copies)) == 4 * len(KEYS),
        "all records behind the split topic",
        within_s=180,
    )
    running.stop()
    assert {value.key: value.value for value in committed_records(apps.kafka, copies)} == {
        key.encode(): b"3" for key in KEYS
    }
