"""Faults in the test driver: crashes, redelivered micro-batches, and shuffled arrivals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import MillstreamError, SettingsError

Driver = ms.testing.TopologyTestDriver


def counting() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    return builder.build()


class NonIdempotent(ms.Processor[str, str, str, str]):
    """Calls a service before it updates its state: the service receives a redelivered record twice."""

    sent: list[str] = []  # noqa: RUF012 - what the service has received
    closed = 0

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        super().init(context)
        self.seen = context.state_store("seen")

    def process(self, record: ms.Record[str, str]) -> None:
        if self.seen.get(record.key) is None:
            NonIdempotent.sent.append(record.key)
            self.seen.put(record.key, record.value)

    def close(self) -> None:
        NonIdempotent.closed += 1


def non_idempotent() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("seen", ms.serdes.string, ms.serdes.string))
    builder.stream("in").process(NonIdempotent, stores=["seen"])
    NonIdempotent.sent, NonIdempotent.closed = [], 0
    return builder.build()


def test_a_crash_keeps_committed_state_and_sent_records() -> None:
    with Driver(counting(), commit_every=2, wall_clock_ms=7) as driver:
        for key in ("a", "a", "b"):
            driver.pipe("in", key, "v")
        driver.crash()
        assert driver.store("counts").get("a").value == 2
        assert driver.store("counts").get("b") is None, "still on the broker"
        driver.pipe("in", "a", "v")
        assert driver.output_topic("out").read_pairs() == [("a", 2), ("b", 1), ("a", 3)]
        assert driver.metrics()["processed_records"] == 4
        assert driver.committed_offset("in") == 4


def test_a_crash_does_not_close_processors() -> None:
    with Driver(non_idempotent()) as driver:
        driver.pipe("in", "a", "v")
        before = NonIdempotent.closed
        driver.crash()
        assert NonIdempotent.closed == before
        driver.pipe("in", "a", "v")
        assert NonIdempotent.sent == ["a"]


def test_calls_in_flight_are_repeated_after_a_crash() -> None:
    calls = []

    async def slow(value: str) -> str:
        calls.append(value)
        await asyncio.sleep(1)
        return value.upper()

    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(slow).to("out")
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        driver.crash()
        driver.advance_wall_clock(1_000)
        assert (calls, [record.value for record in driver.read("out")]) == (["v", "v"], ["V"])
        assert driver.committed_offset("in") == 1


def test_a_redelivered_micro_batch_changes_stores_once_and_sends_again() -> None:
    with Driver(counting(), commit_every=2) as driver:
        driver.redeliver(2)
        for key in ("a", "b", "a"):
            driver.pipe("in", key, "v")
        driver.commit()
        assert driver.output_topic("out").read_pairs() == [("a", 1), ("b", 1)] * 3 + [("a", 2)]
        assert (driver.metrics()["processed_records"], driver.committed_offset("in")) == (3, 3)


def test_redelivery_shows_an_effect_that_is_not_idempotent() -> None:
    with Driver(non_idempotent()) as driver:
        driver.redeliver()
        driver.pipe("in", "a", "v")
    assert NonIdempotent.sent == ["a", "a"]


@pytest.mark.parametrize("times", [0, -1, 1.5, None])
def test_impossible_numbers_of_redeliveries_are_refused(times: Any) -> None:
    with Driver(counting()) as driver, pytest.raises(SettingsError, match="at least 1"):
        driver.redeliver(times)


def test_a_failure_uses_up_a_redelivery() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(lambda value: failing.pop() if failing else value).to("out")
    failing: list[object] = [5]  # not text: the sink fails
    with Driver(builder.build()) as driver:
        driver.redeliver()
        with pytest.raises(MillstreamError):
            driver.pipe("in", "k", "a")
        driver.pipe("in", "k", "b")
        assert [record.value for record in driver.read("out")] == ["a", "b"]


def arrivals(seed: int | None, commit_every: int = 1) -> list[str]:
    builder = ms.StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).to("out")
    with Driver(builder.build(), commit_every=commit_every, partitions={"a": 2}) as driver:
        driver.shuffle(seed)
        for number in range(4):
            driver.pipe("a", None, f"a0{number}", number, partition=0)
            driver.pipe("a", None, f"a1{number}", number, partition=1)
            driver.pipe("b", None, f"b{number}", number)
        assert bool(driver.read("out")) is (seed is None and commit_every == 1)
        driver.commit()
        return [record.value for record in driver.read("out")]


def test_shuffled_arrivals_keep_the_order_of_each_partition() -> None:
    orders = {tuple(arrivals(seed)) for seed in range(30)}
    assert len(orders) > 25
    for order in orders:
        for partition in ("a0", "a1", "b"):
            of_partition = [value for value in order if value.startswith(partition)]
            assert of_partition == sorted(of_partition)
            assert len(of_partition) == 4


def test_a_seed_repeats_an_order() -> None:
    assert arrivals(7) == arrivals(7)
    assert arrivals(7, commit_every=5) == arrivals(7, commit_every=5)


def test_without_a_seed_records_arrive_as_they_were_piped() -> None:
    with Driver(counting()) as driver:
        driver.shuffle(1)
        driver.pipe("in", "a", "v")
        driver.shuffle(None)
        driver.pipe("in", "b", "v")
        assert driver.output_topic("out").read_pairs() == [("a", 1), ("b", 1)]


def test_a_count_does_not_depend_on_the_order_and_survives_all_faults() -> None:
    for seed in range(20):
        with Driver(counting(), commit_every=3, partitions={"in": 2}) as driver:
            driver.shuffle(seed)
            driver.redeliver()
            for number in range(10):
                driver.pipe("in", f"k{number % 3}", "v", number)
            driver.commit()
            driver.crash()
            found = {}
            for partition in range(2):
                found |= {
                    key: count.value for key, count in driver.store("counts", partition=partition).all()
                }
            assert found == {"k0": 4, "k1": 3, "k2": 3}
