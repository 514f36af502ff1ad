"""TopologyTestDriver, with which users test their topologies."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import (
    ArgumentError,
    DeserializationError,
    ProcessingError,
    SerdeError,
    SettingsError,
    StoreError,
    TopicNotFoundError,
    TopologyError,
)
from millstream.core.state.keyvalue import KeyValueStore
from unit.helpers import processing, processor_topology

Driver = ms.testing.TopologyTestDriver
INT = ms.serdes.int64


def word_count() -> ms.Topology:
    builder = ms.StreamsBuilder()
    words = builder.stream("lines").flat_map_values(str.split)
    words.group_by(lambda k, v: v).count(store="counts").to_stream().to("out", value=INT)
    return builder.build()


def echo(**source: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in", **source).to("out")
    return builder.build()


def test_a_record_is_processed_to_the_end_through_internal_topics() -> None:
    with Driver(word_count()) as driver:
        driver.pipe("lines", None, "to be to", 7)
        assert driver.read("out") == [ms.Record("to", 1, 7), ms.Record("be", 1, 7), ms.Record("to", 2, 7)]
        assert driver.store("counts").get("to") == ms.ValueAndTimestamp(2, 7)


def test_reading_removes_the_records_that_it_returns() -> None:
    with Driver(echo()) as driver:
        driver.pipe("in", "k", "v")
        assert (len(driver.read("out")), driver.read("out")) == (1, [])


def test_reading_a_topic_that_the_topology_does_not_have_is_refused() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("results", value=ms.serdes.int64)
    topology = builder.build()
    policies = ms.ErrorPolicies(process=ms.dead_letter("letters"))
    with Driver(topology, policies=policies) as driver:
        assert [driver.read(topic) for topic in ("results", "in", "letters")] == [[], [], []]
        with pytest.raises(TopicNotFoundError, match="'reslts'; did you mean 'results'"):
            driver.read("reslts")
        with pytest.raises(TopicNotFoundError, match="'x'; it sends to: letters, results"):
            driver.output_topic("x")


def test_any_topic_can_be_read_if_a_function_chooses_topics() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").to(lambda key, value, context: value)
    with Driver(builder.build()) as driver:
        assert driver.read("any") == []
    handler = ms.ErrorPolicies(process=lambda context, error: ms.dead_letter("letters"))
    with Driver(echo(), policies=handler) as driver:
        assert driver.read("letters") == []


def test_internal_topics_can_be_read() -> None:
    with Driver(word_count(), application_id="app") as driver:
        driver.pipe("lines", None, "a", 1)
        assert driver.read("app-counts-repartition") == [ms.Record("a", "a", 1)]


def test_internal_topics_can_be_piped_into() -> None:
    with Driver(word_count(), application_id="app") as driver:
        driver.pipe("app-counts-repartition", "a", "x", 1)
        assert driver.read("out") == [ms.Record("a", 1, 1)]


def test_keys_values_timestamps_and_headers_are_passed_on() -> None:
    headers = (("h", b"1"), ("h", None))
    with Driver(echo()) as driver:
        driver.pipe("in", None, None, 5, headers)
        driver.pipe("in", b"bytes", b"as they are", 6)
        assert driver.read("out") == [ms.Record(None, None, 5, headers), ms.Record("bytes", "as they are", 6)]


@pytest.mark.parametrize("timestamp", [None, 1.5, "5", datetime(2026, 1, 1, tzinfo=UTC)])
def test_a_timestamp_must_be_a_whole_number(timestamp: Any) -> None:
    with (
        Driver(echo()) as driver,
        pytest.raises(SettingsError, match=r"timestamp=.*: it must be a whole number of ms"),
    ):
        driver.pipe("in", "k", "v", timestamp)


@pytest.mark.parametrize(
    "headers", [{"h": b"1"}, ["h"], [("h", "1")], [("h", b"1", 2)], [(b"h", b"1")], None]
)
def test_headers_must_be_pairs_of_a_name_and_bytes(headers: Any) -> None:
    with Driver(echo()) as driver, pytest.raises(SettingsError, match=r"headers=.*: headers are pairs"):
        driver.pipe("in", "k", "v", 0, headers)


def test_records_have_consecutive_offsets_per_topic() -> None:
    seen: list[Any] = []
    supplier = processing(lambda context, record: seen.append(context.record_metadata))
    with Driver(processor_topology(supplier, topics=["a", "b"])) as driver:
        for topic in ("a", "b", "a"):
            driver.pipe(topic, "k", "v")
    assert seen == [ms.RecordMetadata("a", 0, 0), ms.RecordMetadata("b", 0, 0), ms.RecordMetadata("a", 0, 1)]


def test_an_output_topic_that_the_topology_reads_is_processed_further() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("between")
    builder.stream("between").map_values(lambda v: v + "!").to("out")
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        assert [r.value for r in driver.read("between")] == ["V"]
        assert [r.value for r in driver.read("out")] == ["V!"]


def test_topics_chosen_per_record_can_be_read() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in", value=INT).to(lambda k, v, context: f"to-{k}", value=INT)
    with Driver(builder.build()) as driver:
        driver.pipe("in", "a", 5)
        assert driver.read("to-a") == [ms.Record("a", 5, 0)]


def test_a_partitioner_sees_one_partition() -> None:
    seen: list[int] = []
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out", partitioner=lambda topic, k, v, partitions: seen.append(partitions))
    with Driver(builder.build()) as driver:
        driver.pipe("in", "a", "x")
        assert (seen, len(driver.read("out"))) == ([1], 1)


class TestTime:
    def ticking(self) -> ms.Topology:
        def init(context: ms.ProcessorContext) -> None:
            for kind, name in ((ms.wall_clock, "wall"), (ms.stream_time, "stream")):
                context.schedule(10, kind, self.tick(context, name))

        return processor_topology(processing(lambda context, record: None, init=init))

    def tick(self, context: ms.ProcessorContext, name: str) -> Any:
        return lambda now: context.forward(ms.Record(name, str(now), now))

    def test_only_the_driver_moves_the_wall_clock(self) -> None:
        with Driver(self.ticking(), wall_clock_ms=1000) as driver:
            driver.pipe("in", "k", "v", 5)
            assert driver.read("out") == [ms.Record("stream", "5", 5)]
            driver.advance_wall_clock(9)
            assert driver.read("out") == []
            driver.advance_wall_clock(timedelta(milliseconds=1))
            assert driver.read("out") == [ms.Record("wall", "1010", 1010)]

    @pytest.mark.parametrize("back", [-1, timedelta(seconds=-1)])
    def test_the_wall_clock_cannot_go_back(self, back: Any) -> None:
        with Driver(echo()) as driver, pytest.raises(ValueError, match="cannot go back"):
            driver.advance_wall_clock(back)

    def test_records_of_a_punctuator_pass_through_internal_topics(self) -> None:
        def init(context: ms.ProcessorContext) -> None:
            context.schedule(10, ms.wall_clock, lambda now: context.forward(ms.Record("k", "v", now)))

        builder = ms.StreamsBuilder()
        ticks = builder.stream("in").process(processing(lambda context, record: None, init=init))
        ticks.group_by_key().count(store="counts").to_stream().to("out", value=INT)
        with Driver(builder.build()) as driver:
            driver.advance_wall_clock(10)
            assert driver.read("out") == [ms.Record("k", 1, 10)]


class TestStores:
    def test_can_be_filled(self) -> None:
        with Driver(word_count()) as driver:
            driver.store("counts").put("a", (41, 0))
            driver.pipe("lines", None, "a", 3)
            assert driver.read("out") == [ms.Record("a", 42, 3)]

    def test_can_be_iterated(self) -> None:
        with Driver(word_count()) as driver:
            driver.pipe("lines", None, "b a b", 3)
            assert [(key, entry.value) for key, entry in driver.store("counts").all()] == [("a", 1), ("b", 2)]

    def test_that_do_not_exist_are_reported_with_those_that_do(self) -> None:
        with (
            Driver(word_count()) as driver,
            pytest.raises(StoreError, match="no store 'count'; it has: counts"),
        ):
            driver.store("count")


class TestErrors:
    def test_a_topic_that_is_not_read_is_reported_with_those_that_are(self) -> None:
        with (
            Driver(word_count(), application_id="app") as driver,
            pytest.raises(
                TopicNotFoundError,
                match="does not read topic 'line'; it reads: lines, app-counts-repartition",
            ),
        ):
            driver.pipe("line", None, "x")

    def test_there_is_no_committed_offset_of_a_topic_that_is_not_read(self) -> None:
        with Driver(word_count(), application_id="app") as driver:
            driver.pipe("lines", None, "a b")
            offsets = [driver.committed_offset(topic) for topic in ("lines", "app-counts-repartition")]
            assert offsets == [1, 2]
            with pytest.raises(TopicNotFoundError, match=r"does not read topic 'out'; it reads: .*lines"):
                driver.committed_offset("out")

    def test_an_object_that_does_not_fit_the_source_is_reported(self) -> None:
        with (
            Driver(echo(value=INT)) as driver,
            pytest.raises(SerdeError, match=r"serdes\.int64 takes an int"),
        ):
            driver.pipe("in", "k", "five")

    def test_bytes_that_do_not_fit_the_source_fail_as_on_a_broker(self) -> None:
        with (
            Driver(echo(value=INT)) as driver,
            pytest.raises(DeserializationError, match="at topic 'in', partition 0"),
        ):
            driver.pipe("in", "k", b"five")

    def test_a_function_that_raises_stops_the_test(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").map_values(int).to("out", value=INT)
        with (
            Driver(builder.build()) as driver,
            pytest.raises(ProcessingError, match=r"offset 0 .*ValueError: invalid literal"),
        ):
            driver.pipe("in", "k", "five")

    def test_a_topology_that_is_not_valid_is_refused(self) -> None:
        with pytest.raises(TopologyError):
            Driver(ms.Topology())


class TestPolicies:
    """Each record is processed to the end before `pipe` returns, even if it fails."""

    def test_a_record_that_is_skipped_is_counted_at_once(self) -> None:
        with Driver(echo(value=INT), policies=ms.ErrorPolicies(deserialize="skip")) as driver:
            driver.pipe("in", "k", b"five")
            assert driver.metrics() == {"processed_records": 0, "dropped_records": 1}

    def test_a_record_without_time_is_counted_at_once(self) -> None:
        with Driver(echo(timestamp=lambda record, time: -1)) as driver:
            driver.pipe("in", "k", "v")
            assert driver.metrics()["dropped_records"] == 1

    def test_a_dead_letter_can_be_read_at_once(self) -> None:
        policies = ms.ErrorPolicies(deserialize="dead_letter", dead_letter_topic="dead")
        with Driver(echo(value=INT), policies=policies) as driver:
            driver.pipe("in", "k", b"five")
            (letter,) = driver.read("dead")
            assert (letter.key, letter.value) == (b"k", b"five")
            assert dict(letter.headers)["millstream.error.stage"] == b"deserialize"

    def test_a_dead_letter_is_bytes_regardless_of_the_serdes_of_sinks(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").map_values(int).to(lambda k, v, context: "out", value=INT)
        policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
        with Driver(builder.build(), policies=policies) as driver:
            driver.pipe("in", "k", "five")
            assert [(r.key, r.value) for r in driver.read("dead")] == [(b"k", b"five")]

    def test_metrics_count_processed_and_dropped_records(self) -> None:
        with Driver(word_count()) as driver:
            driver.pipe("lines", None, "a b", 0)
            assert driver.metrics() == {"processed_records": 3, "dropped_records": 0}

    def test_a_record_without_a_key_is_counted_as_dropped(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().count(store="counts")
        with Driver(builder.build()) as driver:
            driver.pipe("in", None, "v")
            assert driver.metrics() == {"processed_records": 1, "dropped_records": 1}


class TestThreads:
    def test_call_functions_and_return_the_results_of_a_single_thread(self) -> None:
        callers: set[str] = set()

        def split(line: str) -> list[str]:
            callers.add(threading.current_thread().name)
            return line.split()

        builder = ms.StreamsBuilder()
        words = builder.stream("lines").flat_map_values(split)
        words.group_by(lambda k, v: v).count().to_stream().to("out", value=INT)
        with Driver(builder.build(), num_threads_per_task=3) as driver:
            driver.pipe("lines", None, "to be to", 7)
            assert driver.read("out") == [ms.Record("to", 1, 7), ms.Record("be", 1, 7), ms.Record("to", 2, 7)]
        assert callers == {"millstream-task-thread"}

    def test_there_must_be_at_least_one_thread(self) -> None:
        with pytest.raises(SettingsError, match="num_threads_per_task must be at least 1, not 0"):
            Driver(echo(), num_threads_per_task=0)

    @pytest.mark.parametrize("count", [1.5, "4", None])
    def test_must_be_a_whole_number(self, count: Any) -> None:
        with pytest.raises(
            SettingsError, match=r"num_threads_per_task must be a whole number of threads, not"
        ):
            Driver(echo(), num_threads_per_task=count)


def test_every_task_is_closed_even_if_one_fails() -> None:
    closed: list[str] = []

    class Failing(ms.Processor[Any, Any, Any, Any]):
        def process(self, record: ms.Record[Any, Any]) -> None:
            pass

        def close(self) -> None:
            closed.append("closed")
            raise OSError("it stays open")

    builder = ms.StreamsBuilder()
    builder.stream("in").process(Failing)
    driver = Driver(builder.build(), partitions=2, keep_processors=True)
    with pytest.raises(ms.errors.ProcessingError, match="it stays open"):
        driver.close()
    assert closed == ["closed", "closed"]


def test_close_is_called_at_the_end_of_the_with_block() -> None:
    closed: list[str] = []

    class Closing(ms.Processor):
        def process(self, record: ms.Record) -> None:
            pass

        def close(self) -> None:
            closed.append("closed")

    with Driver(processor_topology(Closing)):
        assert closed == []
    assert closed == ["closed"]


class TestMicroBatches:
    """Each call of `pipe` is a micro-batch of its own, or `commit_every` calls share one."""

    class Counting(ms.Processor[str, str, str, str]):
        """Counts in an attribute, which is lost with the processor, and in a store."""

        stores = (ms.stores.key_value("seen", ms.serdes.string, INT),)

        def init(self, context: ms.ProcessorContext[str, str]) -> None:
            super().init(context)
            self.count = 0
            self.seen = context.state_store("seen")

        def process(self, record: ms.Record[str, str]) -> None:
            self.count += 1
            self.seen.put("all", (self.seen.get("all") or 0) + 1)
            self.context.forward(record.with_value(f"{self.count} of {self.seen.get('all')}"))

    def counting(self) -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.stream("in").process(self.Counting).to("out")
        return builder.build()

    def counted(self, records: int, **options: Any) -> list[str]:
        with Driver(self.counting(), **options) as driver:
            for _ in range(records):
                driver.pipe("in", "k", "v")
            driver.commit()
            return [record.value for record in driver.read("out")]

    def test_a_processor_does_not_outlive_its_micro_batch(self) -> None:
        assert self.counted(3) == ["1 of 1", "1 of 2", "1 of 3"]

    def test_a_processor_may_be_kept_across_micro_batches(self) -> None:
        assert self.counted(3, keep_processors=True) == ["1 of 1", "2 of 2", "3 of 3"]

    def test_records_of_a_micro_batch_share_a_processor(self) -> None:
        assert self.counted(5, commit_every=2) == ["1 of 1", "2 of 2", "1 of 3", "2 of 4", "1 of 5"]

    def test_transformers_and_processors_of_values_and_global_stores_are_recreated(self) -> None:
        created: list[str] = []

        def supplier(name: str, base: Any) -> Any:
            # A base class that is an argument has no static type.
            class Recording(base):  # type: ignore[misc]
                def init(self, context: Any) -> None:
                    super().init(context)
                    created.append(name)

                def process(self, record: Any) -> None: ...

                def transform(self, key: Any, value: Any) -> Any:
                    return value

            return Recording

        builder = ms.StreamsBuilder()
        spec = ms.stores.key_value("global", ms.serdes.string, ms.serdes.string)
        builder.add_global_store(spec, "global", supplier("global", ms.Processor))
        builder.stream("in").process_values(supplier("values", ms.Processor))
        builder.table("rows").transform_values(supplier("rows", ms.ValueTransformer))
        with Driver(builder.build()) as driver:
            created.clear()
            driver.pipe("in", "k", "v")
            assert sorted(created) == ["global", "rows", "values"]

    def test_times_and_schedules_outlive_a_micro_batch(self) -> None:
        def init(context: ms.ProcessorContext) -> None:
            for kind in (ms.wall_clock, ms.stream_time):
                context.schedule(10, kind, lambda now: context.forward(ms.Record("k", "tick", now)))

        with Driver(processor_topology(processing(lambda context, record: None, init=init))) as driver:
            driver.pipe("in", "k", "v", 5)
            driver.advance_wall_clock(9)
            driver.pipe("in", "k", "v", 9)
            assert [record.timestamp for record in driver.read("out")] == [5]
            driver.advance_wall_clock(1)
            driver.pipe("in", "k", "v", 10)
            assert [record.timestamp for record in driver.read("out")] == [10, 10]

    def test_a_store_object_always_shows_the_store_of_the_current_task(self) -> None:
        with Driver(self.counting()) as driver:
            store = driver.store("seen")
            driver.pipe("in", "k", "v")
            assert store.get("all") == 1
            store.put("all", 41)
            driver.pipe("in", "k", "v")
            assert (store.get("all"), list(store.all())) == (42, [("all", 42)])
            assert isinstance(store, KeyValueStore)

    def test_each_row_of_a_table_is_sent_once_per_micro_batch(self) -> None:
        with Driver(word_count(), commit_every=2) as driver:
            driver.pipe("lines", None, "a b", 1)
            assert driver.read("out") == []
            driver.pipe("lines", None, "a", 2)
            assert driver.read("out") == [ms.Record("b", 1, 1), ms.Record("a", 2, 2)]

    def test_records_of_several_topics_are_processed_in_timestamp_order(self) -> None:
        with Driver(processor_topology(processing(forwarded), topics=["a", "b"]), commit_every=3) as driver:
            for topic, timestamp in (("a", 5), ("b", 1), ("a", 6)):
                driver.pipe(topic, "k", "v", timestamp)
            assert [record.timestamp for record in driver.read("out")] == [1, 5, 6]

    def test_collected_records_are_processed_before_the_clock_advances(self) -> None:
        with Driver(self.counting(), commit_every=5) as driver:
            driver.pipe("in", "k", "v")
            driver.advance_wall_clock(1)
            assert len(driver.read("out")) == 1

    @pytest.mark.parametrize("count", [0, -1, 1.5, None, "2"])
    def test_must_have_a_whole_number_of_records(self, count: Any) -> None:
        with pytest.raises(SettingsError, match=r"^commit_every=.* whole number of records, at least 1"):
            Driver(echo(), commit_every=count)


def forwarded(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
    context.forward(record)


def test_a_builder_instead_of_a_topology_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"not a ms\.Topology; if it is a builder, call its build"):
        Driver(ms.StreamsBuilder())  # type: ignore[arg-type]  # a user's mistake


def test_a_topic_without_a_name_is_refused() -> None:
    with (
        Driver(echo()) as driver,
        pytest.raises(TopicNotFoundError, match="does not read topic None; it reads: in"),
    ):
        driver.pipe(None, "k", "v")  # type: ignore[arg-type]


class TestAPattern:
    def topology(self) -> ms.Topology:
        builder = ms.StreamsBuilder()
        counts = builder.stream(re.compile("orders-.*")).group_by_key().count(store="counts")
        counts.to_stream().to("out", value=ms.serdes.int64)
        return builder.build()

    def test_reads_every_topic_that_it_matches(self) -> None:
        with Driver(self.topology()) as driver:
            for topic in ("orders-eu", "orders-us", "orders-eu"):
                driver.pipe(topic, "k", "v")
            assert [record.value for record in driver.read("out")] == [1, 2, 3]

    def test_does_not_read_other_topics(self) -> None:
        driver = Driver(self.topology())
        with pytest.raises(
            TopicNotFoundError, match=r"does not read topic 'orders'; it reads: /orders-\.\*/"
        ):
            driver.pipe("orders", "k", "v")

    def test_reads_records_that_the_topology_sends_to_a_matching_topic(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").to("orders-new")
        builder.stream(re.compile("orders-.*")).map_values(str.upper).to("out")
        with Driver(builder.build()) as driver:
            driver.pipe("in", "k", "v")
            assert [record.value for record in driver.read("out")] == ["V"]


def test_dropped_records_are_reported_by_reason() -> None:
    with Driver(word_count(), policies=ms.ErrorPolicies(process="skip")) as driver:
        driver.pipe("lines", None, None)
        driver.pipe("lines", None, "a")
        assert driver.dropped() == {"process error": 1}


def test_produced_topics_include_repartition_topics() -> None:
    with Driver(word_count(), application_id="app") as driver:
        assert driver.produced_topics() == frozenset()
        driver.pipe("lines", None, "a")
        driver.read("out")
        assert driver.produced_topics() == {"out", "app-counts-repartition"}


def test_all_stores_are_returned_by_name() -> None:
    builder = ms.StreamsBuilder()
    builder.global_table("rates", store="rates")
    builder.stream("in").group_by_key().count(store="counts")
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        stores = driver.stores()
        assert sorted(stores) == ["counts", "rates"]
        assert stores["counts"].get("k") == ms.ValueAndTimestamp(1, 0)
