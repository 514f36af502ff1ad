"""Inputs are consumed in the order of their timestamps, on a real broker and through Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import pytest

import millstream as ms
from millstream.core.engine.records.readiness import FOREVER, NEVER_WAIT
from millstream.testing.kafka import ConsumedRecord

from .helpers import Apps, eventually, lag

pytestmark = [pytest.mark.broker, pytest.mark.spark]

DAYS = 10 * 86_400_000
BEGIN = 1_600_000_000_000
KEYS = 89

Row = tuple[str, str, int]


class Joined(NamedTuple):
    """A stream joined with a table, over two topics."""

    orders: str
    rates: str
    sink: str

    @classmethod
    def of(cls, apps: Apps, partitions: int) -> Joined:
        return cls(*(apps.topic(name, partitions) for name in ("orders", "rates", "out")))

    def topology(self) -> ms.Topology:
        builder = ms.StreamsBuilder()
        rates = builder.table(self.rates, store="rates")
        builder.stream(self.orders).left_join(rates, lambda order, rate: f"{order}:{rate}").to(self.sink)
        return builder.build()

    def merged(self, orders: Sequence[Row], rates: Sequence[Row]) -> dict[str, list[str]]:
        """Return the results per key if all records are processed in timestamp order."""
        table: dict[str, str] = {}
        results: dict[str, list[str]] = {}
        rows = [(timestamp, self.orders, key, value) for key, value, timestamp in orders]
        rows += [(timestamp, self.rates, key, value) for key, value, timestamp in rates]
        for _, topic, key, value in sorted(rows):
            if topic == self.rates:
                table[key] = value
            else:
                results.setdefault(key, []).append(f"{value}:{table.get(key)}")
        return results


def spread(name: str, count: int) -> list[Row]:
    """Return records with times over ten days, some of them equal to times of the other topic."""
    return [(f"k{n % KEYS}", f"{name}{n}", BEGIN + n * DAYS // count) for n in range(count)]


def swapped(key: str, value: str) -> tuple[str, str]:
    return value, key


def by_key(records: Sequence[ConsumedRecord]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        assert record.key is not None
        assert record.value is not None
        found.setdefault(record.key.decode(), []).append(record.value.decode())
    return found


class TestABacklog:
    @pytest.mark.soak
    def test_of_a_fast_and_a_slow_topic_is_joined_in_timestamp_order(self, apps: Apps) -> None:
        joined = Joined.of(apps, 3)
        orders, rates = spread("o", 200_000), spread("r", 1_000)
        apps.kafka.produce(joined.orders, orders)
        apps.kafka.produce(joined.rates, rates)
        running = apps.run(joined.topology(), max_batch_records=40_000, buffered_records_per_partition=500)
        assert by_key(apps.kafka.consume(joined.sink)) == joined.merged(orders, rates)
        counted = running.metrics()
        assert (counted["enforced_records"], counted["buffered_records"]) == (0, 0)
        assert counted["buffered_records_max"] <= 500
        assert counted["batches"] > 5
        assert lag(apps.kafka, apps.id, joined.orders) == lag(apps.kafka, apps.id, joined.rates) == 0

    def test_that_is_re_keyed_through_the_shuffle_is_joined_in_timestamp_order(self, apps: Apps) -> None:
        joined = Joined.of(apps, 3)
        orders = [(f"k{n % KEYS}", f"o{n}", BEGIN + n * DAYS // 60_000) for n in range(60_000)]
        rates = [
            (key, value, timestamp + 1) for key, value, timestamp in spread("r", 500)
        ]  # no two times are equal
        apps.kafka.produce(joined.orders, [(value, key, timestamp) for key, value, timestamp in orders])
        apps.kafka.produce(joined.rates, rates)
        builder = ms.StreamsBuilder()
        table = builder.table(joined.rates, store="rates")
        stream = builder.stream(joined.orders).map(swapped)
        stream.left_join(table, lambda order, rate: f"{order}:{rate}").to(joined.sink)
        running = apps.run(builder.build(), max_batch_records=15_000)
        assert by_key(apps.kafka.consume(joined.sink)) == joined.merged(orders, rates)
        assert running.metrics()["enforced_records"] == 0

    @pytest.mark.soak
    def test_is_processed_in_a_guessed_order_without_idling_and_the_guesses_are_counted(
        self, apps: Apps
    ) -> None:
        joined = Joined.of(apps, 1)
        orders, rates = spread("o", 20_000), spread("r", 1_000)
        apps.kafka.produce(joined.orders, orders)
        apps.kafka.produce(joined.rates, rates)
        running = apps.run(joined.topology(), max_task_idle_ms=NEVER_WAIT, max_batch_records=2_000)
        assert by_key(apps.kafka.consume(joined.sink)) != joined.merged(orders, rates)
        assert running.metrics()["enforced_records"] > 0
        assert running.status().enforced == {"0_0": running.metrics()["enforced_records"]}


class TestAnInputThatStalls:
    def test_is_waited_for_across_a_restart_until_the_idle_time_is_over(self, apps: Apps) -> None:
        joined = Joined.of(apps, 1)
        orders = [("k", f"o{n}", BEGIN + n) for n in range(3)]
        with apps.start(joined.topology(), max_task_idle_ms=FOREVER) as running:
            apps.kafka.produce(joined.orders, orders)
            eventually(lambda: running.status().waiting, "the task to say that it waits")
            status = running.status()
            assert f"waits for {joined.rates}-0, which is empty" in status.waiting["0_0"]
            assert status.buffered == {joined.orders: 3}
        assert lag(apps.kafka, apps.id, joined.orders) == 3  # buffered records are not committed
        with apps.start(joined.topology(), max_task_idle_ms=FOREVER) as running:
            apps.kafka.produce(joined.rates, [("k", "r", BEGIN + 1)])
            eventually(lambda: len(apps.kafka.consume(joined.sink)) == 2, "what is before the rate and at it")
            eventually(lambda: running.status().buffered == {joined.orders: 1}, "the last order to be held")
            assert running.metrics()["enforced_records"] == 0
        with apps.start(joined.topology(), max_task_idle_ms=500) as running:
            eventually(lambda: len(apps.kafka.consume(joined.sink)) == 3, "the last order")
            eventually(lambda: running.metrics()["enforced_records"] == 1, "the choice to be counted")
            assert not running.status().waiting
        assert by_key(apps.kafka.consume(joined.sink)) == {"k": ["o0:None", "o1:None", "o2:r"]}
        assert lag(apps.kafka, apps.id, joined.orders) == 0

    def test_fills_the_buffers_of_other_inputs_up_to_their_limit(self, apps: Apps) -> None:
        joined = Joined.of(apps, 1)
        orders = [("k", f"o{n}", BEGIN + n) for n in range(2_000)]
        rates = [("k", "early", BEGIN + 700), ("k", "late", BEGIN + 2_000)]
        settings = {"max_task_idle_ms": FOREVER, "buffered_records_per_partition": 500}
        with apps.start(joined.topology(), **settings) as running:
            apps.kafka.produce(joined.orders, orders)
            eventually(lambda: running.status().buffered == {joined.orders: 500}, "a full buffer")
            apps.kafka.produce(joined.rates, rates)
            eventually(lambda: len(apps.kafka.consume(joined.sink)) == len(orders), "all orders")
            counted = running.metrics()
            assert (counted["buffered_records_max"], counted["enforced_records"]) == (500, 0)
        assert by_key(apps.kafka.consume(joined.sink)) == joined.merged(orders, rates)

    @pytest.mark.alone  # a micro-batch may take at most three seconds
    def test_is_joined_correctly_if_its_records_arrive_within_the_idle_time(self, apps: Apps) -> None:
        """Rates arrive two seconds late, and an order waits for five."""
        joined = Joined.of(apps, 1)
        orders: list[Row] = []
        rates: list[Row] = []
        with apps.start(joined.topology(), max_task_idle_ms=5_000) as running:
            begin = time.monotonic()
            for n in range(24):
                time.sleep(max(begin + n * 0.25 - time.monotonic(), 0))  # the pace of the producer
                now_ms = int(time.time() * 1000)  # noqa: TID251 - the clock of the producer
                orders.append(("k", f"o{n}", now_ms))
                apps.kafka.produce(joined.orders, orders[-1:])
                if n % 2 == 0:
                    rates.append(("k", f"r{n}", now_ms - 2_000))
                    apps.kafka.produce(joined.rates, rates[-1:])
            sure = sum(timestamp < rates[-1][2] for _, _, timestamp in orders)
            eventually(
                lambda: len(apps.kafka.consume(joined.sink)) >= sure, "the orders before the last rate"
            )
            assert running.metrics()["enforced_records"] == 0
            eventually(lambda: len(apps.kafka.consume(joined.sink)) == len(orders), "the others")
            assert running.metrics()["enforced_records"] <= len(orders) - sure
        assert by_key(apps.kafka.consume(joined.sink)) == joined.merged(orders, rates)
