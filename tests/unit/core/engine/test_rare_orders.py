"""Results in combinations that the recordings of Kafka Streams do not contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError, ProcessingError
from millstream.testing import TopologyTestDriver

JSON = ms.serdes.json
INT64 = ms.serdes.int64
STRING = ms.serdes.string


def values(driver: TopologyTestDriver, topic: str) -> list[Any]:
    return [record.value for record in driver.read(topic)]


def pairs(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in driver.read(topic)]


def closing(grace: int) -> ms.Topology:
    builder = ms.StreamsBuilder()
    windows = (
        builder.stream("in")
        .group_by_key()
        .windowed_by(ms.TumblingWindows(10, grace=grace), emit=ms.on_window_close)
    )
    counts = windows.count(store=ms.stores.options("counts", retention=1_000)).to_stream()
    counts.map(lambda key, value: (key.start, value)).to("out", key=JSON, value=INT64)
    return builder.build()


@pytest.mark.parametrize(("before", "after"), [(20, 0), (0, 20)])
def test_an_edited_grace_period_closes_each_window_once(before: int, after: int) -> None:
    with TopologyTestDriver(closing(before)) as driver:
        for timestamp in (5, 15, 25, 35):
            driver.pipe("in", "k", "v", timestamp)
        closed = [record.key for record in driver.read("out")]
        with driver.edited(closing(after)) as edited:
            for timestamp in (36, 45, 100, 200):
                edited.pipe("in", "k", "v", timestamp)
            closed += [record.key for record in edited.read("out")]
    assert closed == [0, 10, 20, 30, 40, 100]


def suppressed(how: ms.Suppressed) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counts = (
        builder.stream("in")
        .group_by_key()
        .windowed_by(ms.TumblingWindows(100, grace=50))
        .count(store="counts")
    )
    counts.suppress(how, store="held").to_stream().to("out", value=INT64)
    return builder.build()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_suppression_buffer_cannot_be_continued_in_another_order(reverse: bool) -> None:
    kinds = [ms.Suppressed.until_window_closes(), ms.Suppressed.until_time_limit(1_000)]
    before, after = reversed(kinds) if reverse else kinds
    with (
        TopologyTestDriver(suppressed(before)) as driver,
        pytest.raises(IncompatibleTopologyError, match="held"),
    ):
        driver.edited(suppressed(after))


def test_a_late_change_stays_late_downstream_of_a_versioned_table() -> None:
    builder = ms.StreamsBuilder()
    history = 10_000
    table = builder.table("versions", store=ms.stores.options("versions", history_retention=history))
    other = builder.table("other")
    table.to_stream().to_table(store=ms.stores.options("copy", history_retention=history)).to_stream().to(
        "copied"
    )
    table.join(other, lambda one, two: f"{one}+{two}").to_stream().to("joined")
    table.group_by(lambda key, value: (value, value)).count(store="groups").to_stream().to(
        "groups", value=INT64
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("other", "k", "x", 0)
        driver.pipe("versions", "k", "new", 100)
        driver.pipe("versions", "k", "old", 50)
        assert values(driver, "joined") == ["new+x"]
        assert pairs(driver, "groups") == [("new", 1)]


def test_a_window_in_a_slice_that_another_input_expired_starts_anew_with_each_record() -> None:
    builder = ms.StreamsBuilder()
    first, second = (builder.stream(topic).group_by_key() for topic in ("first", "second"))

    def joined(key: str, value: str, aggregate: str) -> str:
        return aggregate + value

    windows = first.cogroup(joined).cogroup(second, joined).windowed_by(ms.TumblingWindows(10, grace=0))
    windows.aggregate(str, store="texts").to_stream().map(lambda key, value: (key.key, value)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("first", "k", "A", 10_000_000)
        driver.pipe("second", "k", "C", 5)
        driver.pipe("second", "k", "D", 6)
        assert values(driver, "out") == ["A", "C", "D"]
        assert driver.dropped() == {"expired window": 2}


@pytest.mark.parametrize(
    ("key", "given"), [(JSON, [1, True, 1.0, None]), (ms.serdes.float64, [0.0, -0.0, 1.0, None])]
)
def test_keys_that_are_equal_in_python_leave_no_stale_groups(key: Any, given: list[Any]) -> None:
    builder = ms.StreamsBuilder()
    table = builder.table("in", value=key)
    groups = table.group_by(lambda row, value: (value, row), key=key)
    groups.count(store="groups").to_stream().to("out", key=key, value=INT64)
    with TopologyTestDriver(builder.build()) as driver:
        for value in given:
            driver.pipe("in", "a", value, 0)
        assert not [count for _, count in driver.store("groups").all() if count.value]


def test_a_schedule_that_init_cancels_stays_cancelled() -> None:
    class Ticking(ms.Processor[Any, Any, Any, Any]):
        stores = (ms.stores.key_value("kept", STRING, STRING),)

        def init(self, context: ms.ProcessorContext[Any, Any]) -> None:
            super().init(context)
            ticks = context.schedule(
                10, ms.stream_time, lambda now: context.forward(ms.Record("tick", str(now), now))
            )
            if context.state_store("kept").get("done"):
                ticks.cancel()

        def process(self, record: ms.Record[Any, Any]) -> None:
            if record.value == "done":
                self.context.state_store("kept").put("done", "1")

    builder = ms.StreamsBuilder()
    builder.stream("in").process(Ticking).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for value, timestamp in (("a", 0), ("done", 10), ("b", 20), ("c", 30)):
            driver.pipe("in", "k", value, timestamp)
        assert values(driver, "out") == ["0", "10"]


def test_a_full_buffer_is_not_skipped_as_an_error_of_an_upstream_processor() -> None:
    class Forwarding(ms.Processor[Any, Any, Any, Any]):
        def process(self, record: ms.Record[Any, Any]) -> None:
            self.context.forward(record)

    builder = ms.StreamsBuilder()
    full = ms.Suppressed.until_time_limit(1_000, max_records=1, when_full="fail")
    builder.stream("in").process_values(Forwarding).to_table(store="rows").suppress(full).to_stream().to(
        "out"
    )
    options: Any = {"policies": ms.ErrorPolicies(process="skip"), "statestore_cache_max_bytes": 0}
    with TopologyTestDriver(builder.build(), **options) as driver:
        driver.pipe("in", "a", "v", 0)
        with pytest.raises(ProcessingError, match="max_records=1"):
            driver.pipe("in", "b", "v", 0)


@pytest.mark.parametrize("commit_every", [1, 3])
def test_a_store_returns_values_as_it_will_store_them(commit_every: int) -> None:
    builder = ms.StreamsBuilder()
    sums = (
        builder.stream("in")
        .group_by_key()
        .aggregate(lambda: 2**53, lambda key, value, total: total + 1, value=ms.serdes.float64)
    )
    sums.to_stream().map_values(str).to("out")
    with TopologyTestDriver(
        builder.build(), commit_every=commit_every, statestore_cache_max_bytes=0
    ) as driver:
        for _ in range(3):
            driver.pipe("in", "k", "v", 0)
        driver.commit()
        assert values(driver, "out") == ["9007199254740993", "9007199254740992.0", "9007199254740992.0"]


def test_an_unhashable_callable_can_supply_processors() -> None:
    @dataclass
    class Supplier:
        suffix: str

        def __call__(self) -> ms.Processor[Any, Any, Any, Any]:
            return Suffixing(self.suffix)

    class Suffixing(ms.Processor[Any, Any, Any, Any]):
        def __init__(self, suffix: str) -> None:
            self.suffix = suffix

        def process(self, record: ms.Record[Any, Any]) -> None:
            self.context.forward(record.with_value(record.value + self.suffix))

    builder = ms.StreamsBuilder()
    builder.stream("in").process(Supplier("!")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "v", 0)
        assert values(driver, "out") == ["v!"]


def test_a_delay_until_a_time_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 9223372036854775807 ms"):
        ms.delay(until=2**64)
