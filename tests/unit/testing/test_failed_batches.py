"""A failed micro-batch is not committed: its records are processed again, from the state before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import MillstreamError

Driver = ms.testing.TopologyTestDriver


class FailingFunction:
    """A function that raises an error at chosen calls."""

    def __init__(self, *failing_calls: int) -> None:
        self.failing_calls = failing_calls
        self.calls = 0

    def __call__(self, value: str) -> str:
        self.calls += 1
        if self.calls in self.failing_calls:
            raise ValueError(f"trouble with {value}")
        return value


class Count(ms.Processor[str, str, str, int]):
    """Counts a record and forwards the count, and then may fail."""

    def __init__(self, check: Callable[[str], str]) -> None:
        self.check = check

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.state_store("counts")

    def process(self, record: ms.Record[str, str]) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(ms.Record(record.key, count, record.timestamp))
        self.check(record.value)


def counting(failing_function: FailingFunction) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64))
    words = builder.stream("in", key=ms.serdes.string, value=ms.serdes.string)
    words.process(lambda: Count(failing_function), stores=["counts"]).to("out", value=ms.serdes.int64)
    return builder.build()


def counting_in_operators(failing_function: FailingFunction) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by(lambda key, value: key).count(store="counts")
    checked = counts.to_stream().map_values(lambda count: count + len(failing_function("x")) - 1)
    checked.to("out", value=ms.serdes.int64)
    return builder.build()


def dividing(_: FailingFunction | None = None) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(lambda value: 6 // int(value)).to("out", value=ms.serdes.int64)
    return builder.build()


def pipe_failing_record(driver: Driver, value: str = "a") -> None:
    with pytest.raises(MillstreamError):
        driver.pipe("in", "k", value)


def values(driver: Driver) -> list[Any]:
    return [record.value for record in driver.read("out")]


@pytest.mark.parametrize("make", [counting, counting_in_operators])
@pytest.mark.parametrize("keep", [False, True])
def test_a_record_that_fails_once_is_counted_once(
    make: Callable[[FailingFunction], ms.Topology], keep: bool
) -> None:
    with Driver(make(FailingFunction(2)), keep_processors=keep) as driver:
        counts = driver.store("counts")
        driver.pipe("in", "k", "a")
        pipe_failing_record(driver)
        assert (counts.get("k"), driver.committed_offset("in")) in (
            (1, 1),
            (ms.ValueAndTimestamp(1, 0), 1),
        )
        driver.pipe("in", "k", "c")
        assert counts.get("k") in (3, ms.ValueAndTimestamp(3, 0))
        assert (values(driver), driver.committed_offset("in")) == ([1, 2, 3], 3)


def test_a_failed_record_is_not_skipped_by_columnar_processing() -> None:
    with Driver(dividing()) as driver:
        pipe_failing_record(driver, "0")
        pipe_failing_record(driver, "1")
        assert (values(driver), driver.committed_offset("in")) == ([], 0)


@pytest.mark.parametrize("make", [counting, dividing])
def test_a_corrected_program_begins_with_the_failed_record(
    make: Callable[[FailingFunction], ms.Topology],
) -> None:
    driver = Driver(make(FailingFunction(1)))
    pipe_failing_record(driver, "0")

    def corrected() -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.stream("in").map_values(lambda value: int(value) + 5).to("out", value=ms.serdes.int64)
        return builder.build()

    after = driver.edited(corrected() if make is dividing else counting(FailingFunction()))
    after.pipe("in", "k", "1")
    assert values(after) == ([5, 6] if make is dividing else [1, 2])
    assert after.committed_offset("in") == 2
    after.close()


def test_a_correction_that_fails_too_leaves_the_driver_open() -> None:
    with Driver(dividing()) as driver:
        pipe_failing_record(driver, "0")
        with pytest.raises(MillstreamError, match="division"):
            driver.edited(dividing())
        pipe_failing_record(driver, "1")


def test_the_failed_record_is_processed_first_after_a_crash() -> None:
    with Driver(counting(FailingFunction(1))) as driver:
        pipe_failing_record(driver)
        driver.crash()
        assert driver.store("counts").get("k") is None
        driver.pipe("in", "k", "b")
        assert values(driver) == [1, 2]


def test_a_driver_from_a_snapshot_begins_with_the_failed_record() -> None:
    with Driver(counting(FailingFunction(1))) as driver:
        pipe_failing_record(driver)
        snapshot = driver.snapshot()
        assert values(driver) == [1]
    with Driver(counting(FailingFunction()), snapshot=snapshot) as after:
        after.pipe("in", "k", "b")
        assert values(after) == [2]


@pytest.mark.parametrize("seed", [None, 3])
def test_the_whole_micro_batch_is_repeated(seed: int | None) -> None:
    with Driver(counting(FailingFunction(2)), commit_every=3) as driver:
        driver.shuffle(seed)
        driver.pipe("in", "k", "a")
        driver.pipe("in", "k", "b")
        with pytest.raises(MillstreamError):
            driver.commit()
        driver.commit()
        assert (driver.store("counts").get("k"), driver.committed_offset("in")) == (2, 2)
        assert values(driver)[-2:] == [1, 2]


def test_metrics_count_only_committed_micro_batches() -> None:
    with Driver(counting(FailingFunction(1, 2))) as driver:
        pipe_failing_record(driver)
        assert driver.metrics()["processed_records"] == 0
        with pytest.raises(MillstreamError):
            driver.commit()
        driver.commit()
        assert driver.metrics()["processed_records"] == 1


def test_a_failed_punctuation_runs_again() -> None:
    failing_function = FailingFunction(1)

    class Alarm(ms.Processor[str, str, str, str]):
        def init(self, context: Any) -> None:
            super().init(context)
            self.kept = context.state_store("kept")
            context.schedule(500, ms.wall_clock, self.ring)

        def process(self, record: ms.Record[str, str]) -> None: ...

        def ring(self, now: int) -> None:
            self.kept.put("n", (self.kept.get("n") or 0) + 1)
            failing_function("alarm")

    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("kept", ms.serdes.string, ms.serdes.int64))
    builder.stream("in").process(Alarm, stores=["kept"]).to("out")
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        with pytest.raises(MillstreamError):
            driver.advance_wall_clock(500)
        assert driver.store("kept").get("n") is None
        driver.advance_wall_clock(0)
        assert driver.store("kept").get("n") == 1


def test_a_call_that_was_in_flight_is_repeated() -> None:
    asked = []

    async def ask(value: str) -> str:
        asked.append(value)
        return value

    failing_function = FailingFunction(1)
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(ask).map_values(failing_function).to("out")
    with Driver(builder.build()) as driver:
        pipe_failing_record(driver, "a")
        driver.commit()
        assert (values(driver), asked, driver.committed_offset("in")) == (["a"], ["a", "a"], 1)
