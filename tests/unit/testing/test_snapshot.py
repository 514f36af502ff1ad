"""A test driver continues from the state of another, with the same or an edited topology, by the rules of a checkpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError, SettingsError
from unit.helpers import processing, processor_topology

Driver = ms.testing.TopologyTestDriver
INT = ms.serdes.int64


def counting(store: str = "counts", *, value: Any = None) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by(lambda key, value: value)
    if value is None:
        counts.count(store=store).to_stream().to("out", value=INT)
    else:
        counts.aggregate(lambda: "", lambda k, v, a: a, store=store, value=value).to_stream().to("out")
    return builder.build()


def counted(driver: Driver, *words: str) -> list[tuple[Any, Any]]:
    driver.input_topic("in").pipe_values(words)
    return driver.output_topic("out").read_pairs()


def test_counts_and_offsets_continue() -> None:
    with Driver(counting()) as driver:
        counted(driver, "a", "b", "a")
        with driver.edited(counting()) as after:
            assert after.committed_offset("in") == 3
            assert counted(after, "a", "b") == [("a", 3), ("b", 2)]
            assert after.committed_offset("in") == 5


def test_an_edit_keeps_the_stores_that_it_does_not_change() -> None:
    def with_a_source_in_front() -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.stream("other").group_by_key().count(store="others")
        words = builder.stream("in").filter_not(lambda key, value: value == "b")
        counts = words.group_by(lambda key, value: value).count(store="counts")
        counts.to_stream().to("out", value=INT)
        return builder.build()

    with Driver(counting()) as driver:
        counted(driver, "a", "b", "a")
        with driver.edited(with_a_source_in_front()) as after:
            assert counted(after, "a", "b") == [("a", 3)]
            after.pipe("other", "k", "v")
            assert after.store("others").get("k").value == 1
            with after.edited(counting()) as again:
                assert counted(again, "b") == [("b", 2)]
                assert list(again.stores()) == ["counts"]


def test_a_snapshot_is_not_changed_by_later_records() -> None:
    with Driver(counting()) as driver:
        counted(driver, "a")
        snapshot = driver.snapshot()
        counted(driver, "a", "a")
        for _ in range(2):
            with Driver(counting(), snapshot=snapshot) as other:
                assert counted(other, "a") == [("a", 2)]


def test_times_and_schedules_continue() -> None:
    def topology() -> ms.Topology:
        def init(context: ms.ProcessorContext) -> None:
            for kind in (ms.wall_clock, ms.stream_time):
                context.schedule(10, kind, lambda now: context.forward(ms.Record("k", "tick", now)))

        return processor_topology(processing(lambda context, record: None, init=init))

    with Driver(topology(), wall_clock_ms=1_000) as driver:
        driver.pipe("in", "k", "v", 5)
        driver.advance_wall_clock(7)
        driver.read("out")
        with driver.edited(topology()) as after:
            after.pipe("in", "k", "v", 9)
            after.advance_wall_clock(2)
            assert after.read("out") == []
            after.advance_wall_clock(1)
            after.pipe("in", "k", "v", 10)
            assert [record.timestamp for record in after.read("out")] == [1_010, 10]


def test_collected_records_are_processed_before_new_ones() -> None:
    with Driver(counting(), commit_every=10) as driver:
        counted(driver, "a", "a")
        with driver.edited(counting()) as after:
            counted(after, "a")
            after.commit()
            assert after.output_topic("out").read_pairs() == [("a", 3)]


def test_entries_that_a_test_put_into_a_store_are_kept() -> None:
    with Driver(counting()) as driver:
        driver.store("counts").put("a", (41, 0))
        with driver.edited(counting()) as after:
            assert counted(after, "a") == [("a", 42)]


def test_global_stores_are_kept() -> None:
    def topology(value: Any = ms.serdes.string) -> ms.Topology:
        builder = ms.StreamsBuilder()
        rates = builder.global_table("rates", value=value, store="rates")
        builder.stream("in").join(rates, lambda key, value: key, lambda left, right: f"{left}{right}").to(
            "out"
        )
        return builder.build()

    with Driver(topology()) as driver:
        driver.pipe("rates", "k", "r")
        with driver.edited(topology()) as after:
            after.pipe("in", "k", "v")
            assert after.output_topic("out").read_values() == ["vr"]
            with pytest.raises(
                IncompatibleTopologyError, match=r"global store 'rates' is .* in the snapshot"
            ):
                after.edited(topology(INT))


def test_the_state_of_every_partition_is_kept() -> None:
    with Driver(counting(), partitions=4) as driver:
        counted(driver, *"abcdef")
        with driver.edited(counting()) as after:
            assert counted(after, *"fedcba") == [(word, 2) for word in "fedcba"]


def test_a_store_may_be_renamed() -> None:
    with Driver(counting("old")) as driver:
        counted(driver, "a")
        with driver.edited(counting("new"), renamed_stores={"old": "new"}) as after:
            assert counted(after, "a") == [("a", 2)]


def test_waiting_records_continue_to_wait() -> None:
    def merged(*topics: str) -> ms.Topology:
        return processor_topology(
            processing(lambda context, record: context.forward(record)), topics=list(topics)
        )

    with Driver(merged("a", "b"), max_task_idle_ms=100) as driver:
        driver.pipe("a", "k", "v", 1)
        driver.advance_wall_clock(60)
        with pytest.raises(
            IncompatibleTopologyError, match=r"task 0_0 has records of 'a' that wait .* no longer reads"
        ):
            driver.edited(merged("b", "c"))
        with driver.edited(merged("a", "b")) as after:
            after.advance_wall_clock(39)
            assert after.read("out") == []
            after.advance_wall_clock(1)
            assert [record.timestamp for record in after.read("out")] == [1]


class TestCalls:
    def asking(self, name: str | None = "ask") -> ms.Topology:
        builder = ms.StreamsBuilder()
        stream = builder.stream("in")
        if name is not None:
            stream = stream.map_values_async(_delayed, name=name)
        stream.to("out")
        return builder.build()

    def test_in_flight_are_repeated(self) -> None:
        _attempts.clear()
        with Driver(self.asking()) as driver:
            driver.pipe("in", "k", "v")
            with driver.edited(self.asking()) as after:
                assert (after.read("out"), after.committed_offset("in")) == ([], 0)
                after.advance_wall_clock(1_000)
                assert [record.value for record in after.read("out")] == ["V"]
                assert after.committed_offset("in") == 1
        assert _attempts == ["v", "v"]

    def test_of_a_removed_operator_block_an_edit_until_they_are_finished(self) -> None:
        with Driver(self.asking()) as driver:
            driver.pipe("in", "k", "v")
            with pytest.raises(IncompatibleTopologyError, match=r"'ask.*, and 1 of them are waiting there"):
                driver.edited(self.asking(None))
            driver.advance_wall_clock(1_000)
            with driver.edited(self.asking(None)) as after:
                after.pipe("in", "k", "v")
                assert [record.value for record in after.read("out")] == ["v"]

    @pytest.mark.parametrize("before", ["process_async", "calls", "acknowledges", "map_values_async"])
    @pytest.mark.parametrize("now", ["process_async", "calls", "acknowledges", "map_values_async"])
    def test_do_not_continue_in_an_operator_of_another_kind(self, before: str, now: str) -> None:
        with Driver(topology_with_operator(before)) as driver:
            driver.pipe("in", "k", "v")
            if before == now:
                driver.edited(topology_with_operator(now)).close()
            else:
                with pytest.raises(
                    IncompatibleTopologyError, match=r"'work-unfinished' is .* left 1 record there"
                ):
                    driver.edited(topology_with_operator(now))

    @pytest.mark.parametrize(
        ("before", "now"),
        [("map_values_async", "foreach_async"), ("foreach_async", "map_values_async")],
    )
    def test_continue_if_only_their_results_become_used_or_unused(self, before: str, now: str) -> None:
        with Driver(topology_with_operator(before)) as driver:
            driver.pipe("in", "k", "v")
            with driver.edited(topology_with_operator(now)) as after:
                after.advance_wall_clock(1_000)
                assert after.committed_offset("in") == 1

    def test_may_change_their_kind_once_all_are_finished(self) -> None:
        with Driver(topology_with_operator("map_values_async")) as driver:
            driver.pipe("in", "k", "v")
            driver.advance_wall_clock(1_000)
            driver.edited(topology_with_operator("acknowledges")).close()


class _Issuing(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.issue(_delayed, self.done, record.value)

    def done(self, record: ms.Record[Any, Any], result: Any) -> None:
        self.context.forward(record.with_value(result))


class _Acknowledging(ms.Processor[Any, Any, Any, Any]):
    """Never acknowledges a record."""

    def process(self, record: ms.Record[Any, Any]) -> None: ...


async def _performing(record: ms.Record[Any, Any], context: Any) -> None:
    context.forward(record.with_value(await _delayed(record.value)))


async def _acting(key: str, value: str) -> None:
    await _delayed(value)


def topology_with_operator(kind: str) -> ms.Topology:
    """Return a topology whose operator ``work`` takes a second for each record."""
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    if kind == "process_async":
        stream.process_async(_performing, name="work")
    elif kind == "calls":
        stream.process(_Issuing, calls=ms.Calls(), name="work")
    elif kind == "acknowledges":
        stream.process(_Acknowledging, acknowledges=True, name="work")
    elif kind == "foreach_async":
        stream.foreach_async(_acting, name="work")
    else:
        stream.map_values_async(_delayed, name="work")
    return builder.build()


_attempts: list[str] = []


async def _delayed(value: str) -> str:
    _attempts.append(value)
    await asyncio.sleep(1)
    return value.upper()


class TestRefusedEdits:
    """The driver refuses the edits that a checkpoint refuses, and does not change."""

    def assert_refused(self, driver: Driver, topology: ms.Topology, match: str, **options: Any) -> None:
        with pytest.raises((IncompatibleTopologyError, SettingsError), match=match):
            driver.edited(topology, **options)

    def test_a_store_with_another_serde_is_refused(self) -> None:
        with Driver(counting()) as driver:
            counted(driver, "a")
            self.assert_refused(
                driver, counting(value=ms.serdes.string), "store 'counts' is .* but .* in the checkpoint"
            )
            assert counted(driver, "a") == [("a", 2)]

    def test_another_repartitioning_in_front_of_a_store_is_refused(self) -> None:
        def direct(partitions: int | None) -> ms.Topology:
            builder = ms.StreamsBuilder()
            stream = builder.stream("in")
            if partitions is not None:
                stream = stream.repartition(partitions=partitions)
            stream.group_by_key().count(store="counts")
            return builder.build()

        for before, now in ((None, 8), (4, 8), (8, None)):
            with Driver(direct(before), partitions=3) as driver:
                driver.pipe("in", "k", "v")
                self.assert_refused(driver, direct(now), "counts")

    def test_an_impossible_renaming_of_a_store_is_refused(self) -> None:
        with Driver(counting()) as driver:
            self.assert_refused(driver, counting(), "renamed_stores", renamed_stores={"counts": "else"})

    def test_a_snapshot_of_another_application_is_refused(self) -> None:
        with Driver(counting(), application_id="a") as driver:
            snapshot = driver.snapshot()
        with pytest.raises(
            IncompatibleTopologyError, match="of application 'a', and the driver is of 'test'"
        ):
            Driver(counting(), snapshot=snapshot)


def test_an_edited_driver_is_closed_once() -> None:
    closed: list[int] = []

    class Closing(ms.Processor[Any, Any, Any, Any]):
        def process(self, record: ms.Record[Any, Any]) -> None: ...

        def close(self) -> None:
            closed.append(1)

    with Driver(processor_topology(Closing)) as driver:
        after = driver.edited(processor_topology(Closing))
        assert len(closed) == 1
    assert len(closed) == 1
    after.close()
    assert len(closed) == 2
