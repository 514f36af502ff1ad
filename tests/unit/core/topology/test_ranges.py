"""Which sub-topologies can be divided into key ranges, and the errors for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import (
    IncompatibleTopologyError,
    ProcessingError,
    SettingsError,
    TopologyError,
)
from millstream.core.topology.analysis.ranges import divided_plan, ranges_for, with_ranges_of_state
from millstream.core.topology.layout import lay_out
from millstream.core.topology.routing import Routing, check_routing, left_by, routing_of


class Tally(ms.Processor[str, str, str, int]):
    """Counts per key; a value names another key to count."""

    def init(self, context: ms.ProcessorContext[str, int]) -> None:
        self._context, self._tally = context, context.state_store("tally")

    def process(self, record: ms.Record[str, str]) -> None:
        key = record.value or record.key
        self._tally.put(key, (self._tally.get(key) or 0) + 1)
        self._context.forward(record.with_value(self._tally.get(key)))


def tallying(*, key_local: bool) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("tally", ms.serdes.string, ms.serdes.int64))
    tallied = builder.stream("words").process(Tally, stores=["tally"], key_local=key_local, name="tally-up")
    tallied.to("out", value=ms.serdes.int64)
    return builder.build()


def grouped(builder: ms.StreamsBuilder) -> ms.KGroupedStream[str, str]:
    return builder.stream("words").group_by_key()


def windowed_behind_a_filter(builder: ms.StreamsBuilder) -> object:
    words = builder.stream("words").filter(lambda key, value: bool(value))
    return words.group_by_key().windowed_by(ms.TumblingWindows(10, grace=0)).count()


def left_joined(builder: ms.StreamsBuilder, **options: Any) -> object:
    windows = ms.JoinWindows(before=10, after=10, grace=0, **options)
    return builder.stream("a").left_join(builder.stream("b"), str, windows=windows)


def joined_behind_a_function(builder: ms.StreamsBuilder) -> object:
    windows = ms.JoinWindows(before=10, after=10, grace=0)
    return builder.stream("a").map_values(str).join(builder.stream("b"), str, windows=windows)


def sliding(builder: ms.StreamsBuilder, retention: int | None = None) -> ms.KTable[ms.Windowed[str], int]:
    windows = ms.SlidingWindows(10, grace=5)
    return grouped(builder).windowed_by(windows).count(store=ms.stores.options("w", retention=retention))


def joined_with_windows(builder: ms.StreamsBuilder) -> object:
    keyed = builder.stream("windowed", key=ms.serdes.time_windowed(ms.serdes.string, 10))
    return keyed.join(sliding(builder, 36), lambda word, count: f"{word} {count}")


def suppressed_calendar(builder: ms.StreamsBuilder) -> object:
    counts = grouped(builder).windowed_by(SecondHalfWindows(10, grace=0)).count()
    return counts.suppress(ms.Suppressed.until_window_closes())


class SecondHalfWindows(ms.Windows):
    """Windows over the second half of every 20 ms."""

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        start = timestamp - timestamp % 20 + 10
        return [(start, start + 10)] if timestamp >= start else []


def closing_idle(builder: ms.StreamsBuilder) -> object:
    emit = ms.EmitStrategy.on_window_close(close_idle_after=1000)
    return grouped(builder).windowed_by(ms.TumblingWindows(10, grace=0), emit=emit).count()


async def uppercased(value: str) -> str:
    return value.upper()


async def tallied(record: ms.Record[str, str], context: ms.CallContext) -> None: ...


def limited(builder: ms.StreamsBuilder) -> object:
    return grouped(builder).count().suppress(ms.Suppressed.until_time_limit(10, max_records=5))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (windowed_behind_a_filter, "may drop records"),
        (
            lambda b: left_joined(b, unmatched="early"),
            "emits records without a partner depending on records of other keys",
        ),
        (
            lambda b: left_joined(b, unmatched_interval=1000),
            "checks for records without a partner at intervals that all keys share",
        ),
        (joined_behind_a_function, r"'KSTREAM-MAPVALUES-\d+' upstream of it may make values null"),
        (
            joined_with_windows,
            r"\(StreamTableJoin\) looks up windows of .*, whose expiry depends on the windows of other keys",
        ),
        (suppressed_calendar, r"\(Suppress\) has its own stream time, .* may drop records"),
        (
            lambda b: b.table("words").suppress(ms.Suppressed.until_time_limit(10)),
            "does not forward deletes of rows that do not exist",
        ),
        (closing_idle, "closes windows when all keys are idle"),
        (limited, "limits a buffer that all keys share"),
        (
            lambda b: (
                b.stream("words", timestamp=lambda record, time: record.timestamp).group_by_key().count()
            ),
            "extracts timestamps from records",
        ),
        (
            lambda b: b.stream("words").map_values_async(uppercased, order="partition"),
            "keeps the order of a whole partition",
        ),
        (sliding, r"may expire because of other keys .* retention=36\) or more"),
        (
            lambda b: b.stream("words").process(Tally, calls=ms.Calls(), key_local=True),
            r"is a processor with calls= or acknowledges=True, which has no key ranges",
        ),
        (
            lambda b: b.stream("words").process_async(tallied, stores=[]),
            r"is a coroutine with stores \(process_async\), which has no key ranges",
        ),
        (
            lambda b: b.table("words").transform_values(Tally),
            r"transforms a table with a processor \(transform_values\), which has no key ranges",
        ),
    ],
)
def test_a_topology_that_cannot_be_divided_is_refused_with_the_reason(
    build: Callable[[ms.StreamsBuilder], object], reason: str
) -> None:
    builder = ms.StreamsBuilder()
    build(builder)
    plan = builder.build().plan("app")
    with pytest.raises(TopologyError, match=reason):
        divided_plan(plan, 4)
    assert divided_plan(plan, 1) == plan


@pytest.mark.parametrize(
    "build",
    [
        left_joined,
        lambda b: sliding(b, 36),
        lambda b: grouped(b).windowed_by(SecondHalfWindows(10, grace=0)).count(),
        lambda b: b.table("words", store=ms.stores.options("history", history_retention=10)),
        lambda b: b.table("a").left_join(b.table("b"), str, on=str),
    ],
)
def test_operators_that_use_partition_time_but_no_other_keys_can_be_divided(
    build: Callable[[ms.StreamsBuilder], object],
) -> None:
    builder = ms.StreamsBuilder()
    build(builder)
    assert {sub.ranges for sub in divided_plan(builder.build().plan("app"), 4).subtopologies} == {16}


def test_a_processor_must_declare_key_local_and_use_only_the_key_of_its_record() -> None:
    with pytest.raises(TopologyError, match=r"'tally-up' .* without key_local=True"):
        divided_plan(tallying(key_local=False).plan("app"), 4)
    with ms.testing.TopologyTestDriver(tallying(key_local=True), parallelism=4) as driver:
        for word in ("to", "be", "to"):
            driver.pipe("words", word, "")
        assert [(r.key, r.value) for r in driver.read("out")] == [("to", 1), ("be", 1), ("to", 2)]
        with pytest.raises(
            ProcessingError, match=r"'tally-up' promises key_local=True, but uses key 'be' of store 'tally'"
        ):
            driver.pipe("words", "to", "be")


def test_only_the_named_topics_are_divided() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("a").group_by_key().count(store="a-counts")
    builder.stream("b").group_by_key().count(store="b-counts")
    assert divided_plan(builder.build().plan("app"), {"a": "auto"}) == divided_plan(
        builder.build().plan("app"), {"a": 3}
    )
    plan = divided_plan(builder.build().plan("app"), {"a": 3})
    assert [sub.ranges for sub in plan.subtopologies] == [16, 1]
    layout = lay_out(plan, {"a": 2, "b": 2})
    tasks = layout.tasks_of[ms.TopicPartition("a", 1)]
    assert [task.partition for task in tasks] == list(range(16, 32))
    assert [plan.subtopologies[0].key_range(task) for task in tasks[:2]] == [(0, 16), (1, 16)]
    assert len(layout.tasks_of[ms.TopicPartition("b", 1)]) == 1
    with pytest.raises(SettingsError, match="names 'c', which the topology does not read"):
        divided_plan(builder.build().plan("app"), {"c": 3})


def test_a_topic_before_the_shuffle_divides_the_subtopology_after_it() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("lines").group_by(lambda key, line: line).count(store="counts")
    plan = divided_plan(builder.build().plan("app"), {"lines": 4})
    assert sorted(sub.ranges for sub in plan.subtopologies) == [1, 16]


@pytest.mark.parametrize("workers", [0, 257, 2.5, True])
def test_an_invalid_number_of_workers_is_refused(workers: int) -> None:
    with pytest.raises(SettingsError, match="a whole number from 1 to 256"):
        ranges_for(workers)


def test_a_change_that_would_move_state_to_other_key_ranges_is_refused() -> None:
    builder = ms.StreamsBuilder()
    grouped(builder).count(store="counts")
    plan = builder.build().plan("app")
    routes = {}
    for workers in (1, 2, 16, 17):
        divided = divided_plan(plan, workers)
        routes[workers] = Routing.from_json(routing_of(divided, lay_out(divided, {"words": 2})).to_json())
    assert routes[2] == routes[16]
    check_routing(routes[2], routes[16])
    for before, now in ((1, 2), (16, 17), (17, 1)):
        with pytest.raises(
            IncompatibleTopologyError, match=r"were divided into .* and would be divided into"
        ):
            check_routing(routes[before], routes[now])
        assert left_by(routes[before], routes[now]) == {"words"}
    for before, now in ((1, 2), (1, 17), (16, 17)):
        check_routing(routes[before], routes[now], divides=True)
    for before, now in ((17, 1), (17, 16), (16, 1)):
        with pytest.raises(IncompatibleTopologyError, match="has the same key ranges"):
            check_routing(routes[before], routes[now], divides=True)


def test_fewer_workers_keep_the_key_ranges_of_the_state() -> None:
    builder = ms.StreamsBuilder()
    grouped(builder).count(store="counts")
    plan = builder.build().plan("app")
    divided = divided_plan(plan, 17)
    before = routing_of(divided, lay_out(divided, {"words": 2}))
    for workers, ranges in ((1, 64), (4, 64), (64, 64), (65, 256)):
        now = with_ranges_of_state(divided_plan(plan, workers), before)
        assert [sub.ranges for sub in now.subtopologies] == [ranges]
        check_routing(before, routing_of(now, lay_out(now, {"words": 2})), divides=True)
    assert with_ranges_of_state(plan, Routing()) == plan


def test_a_new_store_has_no_key_ranges_to_keep() -> None:
    builder = ms.StreamsBuilder()
    grouped(builder).count(store="counts")
    divided = divided_plan(builder.build().plan("app"), 4)
    before = routing_of(divided, lay_out(divided, {"words": 2}))
    builder = ms.StreamsBuilder()
    grouped(builder).count(store="others")
    plan = builder.build().plan("app")
    assert with_ranges_of_state(plan, before) == plan


def test_the_test_driver_keeps_the_key_ranges() -> None:
    builder = ms.StreamsBuilder()
    grouped(builder).count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    topology = builder.build()
    driver = ms.testing.TopologyTestDriver(topology, parallelism=4)
    driver.pipe("words", "to", "")
    with driver.edited(topology, parallelism=1) as after:
        after.pipe("words", "to", "")
        assert [record.value for record in after.read("out")] == [2]


def test_a_call_that_hangs_holds_back_the_committed_offset_but_no_other_key_range() -> None:
    async def answer(key: str, value: str) -> str:
        if value == "hangs":
            await asyncio.sleep(60)
        return value.upper()

    builder = ms.StreamsBuilder()
    builder.stream("words").map_values_async(answer, with_key=True).to("out")
    with ms.testing.TopologyTestDriver(builder.build(), parallelism=4) as driver:
        for word in ("to", "be", "or", "not"):
            driver.pipe("words", word, "hangs" if word == "be" else "answers")
        assert {record.key for record in driver.read("out")} == {"to", "or", "not"}
        assert driver.committed_offset("words") == 1
        driver.advance_wall_clock(60_000)
        assert [record.key for record in driver.read("out")] == ["be"]
        assert driver.committed_offset("words") == 4
