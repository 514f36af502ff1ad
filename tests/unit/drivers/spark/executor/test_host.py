"""The task host, with dicts instead of Spark's state: batches, attempts that fail, and rows that pass through."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

import millstream as ms
from millstream.core.engine.records.readiness import NEVER_WAIT, Waiting
from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.core.model.errors import IncompatibleTopologyError, ProcessingError, SparkRuntimeError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.runtime.partition_times import encode_times
from millstream.core.runtime.remaining_inputs import TaskInput
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.segments.log import decode_manifest
from millstream.core.taps.samples import Sample
from millstream.core.topology.evolution import ComparedPart, Lineage, continued, parts_of
from millstream.core.topology.layout import Layout, lay_out
from millstream.core.topology.plan import Plan
from millstream.drivers.spark import wire
from millstream.drivers.spark.crossing import find_error
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.drivers.spark.executor.host import TaskHost
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.spec import TopologySpec
from millstream.drivers.threads import ThreadsOfTasks
from unit.drivers.engines import COPIES
from unit.drivers.state import MapState
from unit.helpers import Meeting, records, totals
from unit.helpers import Row as Cells

OPENERS = {name: engine.opener for name, engine in COPIES.items()}


class FakeValueState:
    """Spark's value state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None


class Handle:
    """The state of one attempt: the committed values, and the writes of the attempt."""

    def __init__(self, head: Any, log: dict[Any, Any]) -> None:
        self.head, self.log = FakeValueState(head), MapState(log)

    def getValueState(self, name: str, schema: Any) -> FakeValueState:  # noqa: N802 - Spark's name
        return self.head

    def getMapState(self, name: str, key: Any, value: Any) -> MapState:  # noqa: N802 - Spark's name
        return self.log


SENT: list[str] = []
"""What :class:`RecordingSender` did. It is global because specs are pickled."""


class RecordingSender:
    def publish(self, topic: str, records: Records) -> None:
        SENT.append(topic)

    def flush(self) -> None:
        SENT.append("acknowledged")


class Spark:
    """Runs the batches of one task on one host, and commits those that do not fail."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.engine = "lmdb"
        self.idle_ms = NEVER_WAIT
        self.threads = 1
        self.head: Any = None
        self.log: dict[Any, Any] = {}
        self.sender: RecordingSender | None = None

    def engines(self, plan: Plan) -> dict[str, str]:
        specs = [spec for sub in plan.subtopologies for spec in sub.stores.values()]
        return {spec.name: spec.engine or self.engine for spec in specs}

    def threads_of(self, layout: Layout) -> ThreadsOfTasks:
        return ThreadsOfTasks(dict.fromkeys(layout.tasks, self.threads))

    def batch(
        self,
        topology: ms.Topology,
        rows: Sequence[Row],
        *,
        commit: bool = True,
        before: Mapping[int, ComparedPart] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> list[Row]:
        plan = continued(topology.plan("app"), before or {})
        layout = lay_out(plan, dict.fromkeys(plan.external_topics, 1))
        lineage = Lineage(parts_of(plan, layout, before or {}), {}, renamed or {})
        spec = TopologySpec(
            plan,
            layout,
            grouping_keys(layout.tasks),
            ms.ErrorPolicies(),
            {},
            lineage,
            threads=self.threads_of(layout),
            sender=self.sender,
        )
        copies = CopiesSpec(str(self.state_dir), OPENERS, self.engines(plan), 64 << 20)
        host = TaskHost(HostSpec(spec, copies, max_task_idle_ms=self.idle_ms))
        handle = Handle(self.head, self.log)
        host.init(handle)
        out = list(host.handleInputRows(None, iter(rows), None))
        host.close()
        if commit:
            self.head, self.log = handle.head.value, handle.log.content
        return out


def row(kind: int, *cells: Cells, start: int = 0, lane: str = "", topic: str = "in", now_ms: int = 0) -> Row:
    payload = wire.encode(records(cells, start)) if cells else b""
    return Row(
        group=0, kind=kind, task="0_0", topic=topic, partition=0, lane=lane, start=start,
        end=start + len(cells), batch="5f3a:4", now_ms=now_ms, ahead_ms=0, payload=payload,
    )  # fmt: skip


def input_facts(lag: int = 0, until: int | None = None) -> Row:
    """Return the row with which the reader informs the task of its inputs."""
    other = TopicPartition("other", 0)
    message = TaskInput({other: lag} if lag else {}, {} if until is None else {other: until})
    return Row(**{**row(wire.INPUTS).asDict(), "payload": message.encode()})


def sent(rows: Sequence[Row]) -> list[tuple[Any, Any]]:
    batches = [wire.decode(row.payload) for row in rows if row.kind == wire.SEND]
    return [(key, value) for batch in batches for key, value in zip(batch.keys, batch.values, strict=True)]


def report(rows: Sequence[Row]) -> TaskReport:
    (found,) = [TaskReport.decode(row.payload) for row in rows if row.kind == wire.REPORT]
    return found


def counting() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().map_values(str).to("out")
    return builder.build()


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


def test_counts_continue_across_micro_batches(spark: Spark) -> None:
    first = spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1), ("b", "x", 2))])
    assert sent(first) == [(b"a", b"1"), (b"b", b"1")]
    second = spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 3), start=2)])
    assert sent(second) == [(b"a", b"2")]
    done = report(second)
    counted = totals(done)
    assert (done.task, done.offsets) == ("0_0", {TopicPartition("in", 0): 3})
    assert [counted[f"{counter}_records"] for counter in ("read", "processed", "sent")] == [1, 1, 1]
    assert (done.stream_time_ms, totals(done)["restored_changes"], done.first_record_ms) == (3, 0, 0)


def tapped(*nodes: str) -> Row:
    """Return the row with which the reader informs the task of its taps."""
    return Row(**{**row(wire.TAPS).asDict(), "payload": json.dumps(nodes).encode()})


def test_samples_of_taps_are_in_the_report_of_their_batch(spark: Spark) -> None:
    (counted,) = [name for name, node in counting().plan("app").subtopologies[0].nodes.items() if node.table]
    records = row(wire.RECORDS, ("a", "x", 1), now_ms=5)
    (tap,) = report(spark.batch(counting(), [records, tapped(counted)], commit=False)).taps
    assert (tap.node, tap.now_ms, tap.passed) == (counted, 5, 1)
    assert tap.samples == (Sample("in", 0, 0, "a", "x", 1),)
    assert report(spark.batch(counting(), [records])).taps == ()


def test_a_repeated_micro_batch_starts_from_the_committed_state(spark: Spark) -> None:
    spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1))])
    again = [row(wire.RECORDS, ("a", "x", 2), start=1)]
    lost = spark.batch(counting(), again, commit=False)
    assert sent(spark.batch(counting(), again)) == sent(lost) == [(b"a", b"2")]


def test_a_task_without_its_local_copy_is_restored_from_the_log(spark: Spark, tmp_path: Path) -> None:
    spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1), ("b", "x", 1))])
    spark.state_dir = tmp_path / "another-host"
    out = spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 2), start=2)])
    assert (sent(out), totals(report(out))["restored_changes"]) == ([(b"a", b"2")], 2)


@pytest.mark.parametrize("engine", COPIES)
def test_every_engine_keeps_its_state_between_micro_batches(
    spark: Spark, tmp_path: Path, engine: str
) -> None:
    spark.engine = engine
    spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1), ("b", "x", 1))])
    for number in range(2, 6):
        out = spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 2), start=number)])
        assert (sent(out), totals(report(out))["restored_changes"]) == ([(b"a", b"%d" % number)], 0)
    assert [path.name for path in (tmp_path / "0_0").iterdir()] == [engine]


class TestStoresOfSeveralEngines:
    def topology(self, first: str, second: str) -> ms.Topology:
        topology = ms.Topology().add_source("in", "in").add_processor("p", _CountingTwice, "in")
        for name, engine in (("first", first), ("second", second)):
            spec = ms.stores.key_value(name, ms.serdes.string, ms.serdes.int64, engine=engine)
            topology = topology.add_state_store(spec, processors=["p"])
        return topology.add_sink("s", "out", "p")

    def test_are_restored_independently(self, spark: Spark, tmp_path: Path) -> None:
        topology = self.topology("lmdb", "rocksdb")
        for number in range(3):
            spark.batch(topology, [row(wire.RECORDS, ("a", "x", 1), start=number)])
        assert sorted(path.name for path in (tmp_path / "0_0").iterdir()) == ["lmdb", "rocksdb"]
        COPIES["rocksdb"].discard(str(tmp_path / "0_0" / "rocksdb"))
        out = spark.batch(topology, [row(wire.RECORDS, ("a", "x", 1), start=3)])
        assert (sent(out), totals(report(out))["restored_changes"]) == ([(b"a", b"4 4")], 1)

    def test_may_change_their_engine(self, spark: Spark, tmp_path: Path) -> None:
        names = [
            ("lmdb", "lmdb"),
            ("lmdb", "rocksdb"),
            ("memory", "rocksdb"),
            ("lmdb", "lmdb"),
            ("lmdb", "rocksdb"),
        ]
        for number, engines in enumerate(names):
            for again in (0, 1):
                start = 2 * number + again
                out = spark.batch(self.topology(*engines), [row(wire.RECORDS, ("a", "x", 1), start=start)])
                assert sent(out) == [(b"a", b"%d %d" % (start + 1, start + 1))]
            assert {path.name for path in (tmp_path / "0_0").iterdir()} == set(engines)


class TestATaskWithTwoInputs:
    def topology(self) -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.stream("in").merge(builder.stream("other")).process(_Forwarding).to("out")
        return builder.build()

    def test_buffers_records_that_it_cannot_process_yet(self, spark: Spark) -> None:
        spark.idle_ms = 0
        first = spark.batch(
            self.topology(), [row(wire.RECORDS, ("a", "1", 5), ("a", "3", 8)), input_facts(lag=5)]
        )
        done = report(first)
        assert (sent(first), done.offsets, totals(done)["read_records"]) == (
            [],
            {TopicPartition("in", 0): 0},
            2,
        )
        assert (done.waiting, done.buffered) == (
            Waiting(TopicPartition("other", 0), "lag", 0),
            (("in", 0, "", 2, 4, 8),),
        )
        other = row(wire.RECORDS, ("b", "2", 6), topic="other")
        second = spark.batch(self.topology(), [other, input_facts(lag=5, until=7)])
        assert sent(second) == [(b"a", b"1"), (b"b", b"2")]
        assert report(second).offsets == {TopicPartition("in", 0): 1, TopicPartition("other", 0): 1}
        third = spark.batch(self.topology(), [input_facts()])
        assert sent(third) == [(b"a", b"3")]
        assert (report(third).offsets, totals(report(third))["enforced_records"]) == (
            {TopicPartition("in", 0): 2},
            1,
        )

    def test_does_not_commit_an_offset_gap_behind_a_buffered_record(self, spark: Spark) -> None:
        spark.idle_ms = 0
        spark.batch(self.topology(), [row(wire.RECORDS, ("a", "1", 5)), input_facts(lag=5)])
        gap = Row(**{**row(wire.RECORDS, start=1).asDict(), "end": 4})
        waiting = spark.batch(self.topology(), [gap, input_facts(lag=5)])
        assert report(waiting).offsets == {TopicPartition("in", 0): 0}
        assert report(spark.batch(self.topology(), [input_facts()])).offsets == {TopicPartition("in", 0): 4}

    def test_does_not_wait_when_it_has_no_input_facts(self, spark: Spark) -> None:
        spark.idle_ms = 0
        out = spark.batch(self.topology(), [row(wire.RECORDS, ("a", "1", 5))])
        assert (sent(out), totals(report(out))["enforced_records"]) == ([(b"a", b"1")], 0)

    def test_counts_enforced_records_when_it_never_waits(self, spark: Spark) -> None:
        out = spark.batch(self.topology(), [row(wire.RECORDS, ("a", "1", 5))])
        assert (sent(out), totals(report(out))["enforced_records"]) == ([(b"a", b"1")], 1)


def test_chunks_of_a_partition_are_processed_in_offset_order(spark: Spark) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").process(_Echo).to("out")
    pieces = [row(wire.RECORDS, ("k", f"{n}", 0), start=n) for n in (2, 0, 1)]
    end = row(wire.RECORDS, start=3).asDict() | {"end": 9}
    out = spark.batch(builder.build(), [Row(**end), *pieces])
    assert [value for _, value in sent(out)] == [b"0", b"1", b"2"]
    assert report(out).offsets == {
        TopicPartition("in", 0): 9
    }  # trailing offsets without records are processed too


def test_a_tick_starts_a_task_without_records(spark: Spark) -> None:
    out = spark.batch(counting(), [row(wire.TICK, topic="")])
    assert (sent(out), totals(report(out))["processed_records"], report(out).first_record_ms) == ([], 0, None)


def test_send_and_report_rows_pass_through_unchanged(spark: Spark) -> None:
    passing = [row(wire.SEND, ("a", "x", 1), topic="elsewhere"), row(wire.REPORT)]
    out = spark.batch(counting(), passing)
    assert [(r.kind, r.topic, r.payload) for r in out] == [(r.kind, r.topic, r.payload) for r in passing]
    assert spark.head is None


def test_a_wall_clock_punctuation_runs_in_a_later_micro_batch(spark: Spark) -> None:
    topology = (
        ms.Topology().add_source("in", "in").add_processor("p", _Ticking, "in").add_sink("s", "out", "p")
    )
    assert report(spark.batch(topology, [row(wire.TICK, now_ms=100)])).wake_at_ms == 110
    out = spark.batch(topology, [row(wire.TICK, now_ms=115)])
    assert (sent(out), report(out).wake_at_ms) == ([(None, b"115")], 120)


def test_an_error_names_the_topic_partition_and_offset(spark: Spark) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").process(_Failing)
    with pytest.raises(SparkRuntimeError) as caught:
        spark.batch(builder.build(), [row(wire.RECORDS, ("a", "x", 1), start=41)])
    found = find_error(str(caught.value))
    assert isinstance(found, ProcessingError)
    assert "at topic 'in', partition 0, offset 41" in found.message


def test_processors_are_closed_when_a_record_fails(spark: Spark) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").process(_Failing)
    _Failing.closed = 0
    with pytest.raises(SparkRuntimeError):
        spark.batch(builder.build(), [row(wire.RECORDS, ("a", "x", 1))])
    assert _Failing.closed == 1


def test_a_store_whose_serde_has_changed_is_refused(spark: Spark) -> None:
    spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1))])
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().reduce(max, store="counts")
    with pytest.raises(SparkRuntimeError) as caught:
        spark.batch(builder.build(), [row(wire.TICK)])
    assert isinstance(find_error(str(caught.value)), IncompatibleTopologyError)


def test_a_removed_store_is_empty_when_it_is_added_again(spark: Spark) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().reduce(max, store="largest")
    spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1))])
    spark.batch(builder.build(), [row(wire.RECORDS, ("a", "x", 1), start=1)])
    assert sent(spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1), start=2)])) == [(b"a", b"1")]


MINUTE = 60_000


class _Storing(ms.Processor):
    """Puts records into stores of several kinds, and forwards their content."""

    def process(self, record: ms.Record) -> None:
        windows, versions, recent = map(self.context.state_store, ("windows", "versions", "recent"))
        windows.put(record.key, record.value, record.timestamp)
        versions.put(record.key, record.value, record.timestamp)
        recent.put(record.key, record.value)
        latest = versions.get(record.key, record.timestamp - MINUTE)
        found = [value for _, value in windows.all()], latest and latest.value, [k for k, _ in recent.all()]
        self.context.forward(record.with_value(str(found)))


class _Windowing(ms.Processor):
    """Puts records into its only store, a window store, and forwards its content."""

    def process(self, record: ms.Record) -> None:
        (name,) = self.context._stores  # type: ignore[attr-defined]
        store = self.context.state_store(name)
        store.put(record.key, record.value, record.timestamp)
        self.context.forward(record.with_value("".join(value for _, value in store.all())))


def windowing(name: str) -> ms.Topology:
    text = ms.serdes.string
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.window(name, text, text, retention=2 * MINUTE, size=MINUTE))
    builder.stream("in").process(_Windowing, stores=[name]).to("out")
    return builder.build()


def test_a_renamed_window_store_keeps_its_slices(spark: Spark) -> None:
    spark.batch(windowing("old"), [row(wire.RECORDS, ("a", "1", 0), ("a", "2", 2 * MINUTE))])
    renamed = spark.batch(
        windowing("new"), [row(wire.RECORDS, ("a", "3", MINUTE), start=2)], renamed={"old": "new"}
    )
    assert sent(renamed) == [(b"a", b"32")]
    late = spark.batch(windowing("new"), [row(wire.RECORDS, ("a", "4", 0), ("a", "5", 3 * MINUTE), start=3)])
    assert sent(late) == [(b"a", b"32"), (b"a", b"25")]


def stores_of_several_kinds() -> ms.Topology:
    text = ms.serdes.string
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.window("windows", text, text, retention=2 * MINUTE, size=MINUTE))
    builder.add_state_store(ms.stores.versioned("versions", text, text, history_retention=2 * MINUTE))
    builder.add_state_store(ms.stores.lru("recent", text, text, capacity=2))
    builder.stream("in").process(_Storing, stores=["windows", "versions", "recent"]).to("out")
    return builder.build()


@pytest.mark.parametrize("cut", [False, True])
def test_time_based_stores_remember_stream_time_and_drop_expired_rows(
    spark: Spark, tmp_path: Path, cut: bool
) -> None:
    """This also holds when the local copy is lost and the store is rebuilt from the log."""
    keys, found = "aabcb", []
    for batch, key in enumerate(keys):
        if cut:
            spark.state_dir = tmp_path / str(batch)
        cells = (key, str(batch), batch * MINUTE)
        found += [
            value.decode()
            for _, value in sent(
                spark.batch(stores_of_several_kinds(), [row(wire.RECORDS, cells, start=batch)])
            )
        ]
    assert found == [
        "(['0'], None, ['a'])",
        "(['0', '1'], '0', ['a'])",
        "(['1', '2'], None, ['a', 'b'])",
        "(['2', '3'], None, ['b', 'c'])",
        "(['4', '3'], '2', ['b', 'c'])",
    ]
    manifest, kept = decode_manifest(bytes(spark.head[0]))
    assert {name for name, _ in manifest.segments if name.startswith("windows/")} == {
        "windows/120000",
        "windows/180000",
        "windows/240000",
    }
    assert kept["task"]["stores"]["windows"]["time"] == 4 * MINUTE


def test_a_renamed_store_keeps_its_content(spark: Spark) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="seen").to_stream().map_values(str).to("out")
    renamed = {"counts": "seen"}
    spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1))])
    lost = spark.batch(builder.build(), [row(wire.TICK)], renamed=renamed, commit=False)
    assert totals(report(lost))["restored_changes"] == 1  # the local copy has the old name
    spark.batch(builder.build(), [row(wire.TICK)], renamed=renamed)
    again = spark.batch(builder.build(), [row(wire.RECORDS, ("a", "x", 2), start=1)], renamed=renamed)
    assert (sent(again), totals(report(again))["restored_changes"]) == ([(b"a", b"2")], 0)
    assert sent(spark.batch(builder.build(), [row(wire.RECORDS, ("a", "x", 3), start=2)])) == [(b"a", b"3")]


def test_the_state_of_a_removed_subtopology_is_deleted(spark: Spark) -> None:
    spark.batch(counting(), [row(wire.RECORDS, ("a", "x", 1))])
    builder = ms.StreamsBuilder()
    builder.stream("elsewhere").group_by_key().count(store="others")
    removed_parts = {0: ComparedPart(("in",), ("counts",), 1)}
    for _ in range(2):
        assert spark.batch(builder.build(), [row(wire.TICK)], before=removed_parts) == []
        assert (spark.head, spark.log) == (None, {})


def test_the_threads_of_a_task_call_a_function_concurrently(spark: Spark) -> None:
    spark.threads = 3
    builder = ms.StreamsBuilder()
    mapped = builder.stream("in").map_values(Meeting(3))
    mapped.group_by_key().reduce(lambda old, new: old + new).to_stream().to("out")
    cells = [
        (key, value, timestamp) for timestamp, (key, value) in enumerate(zip("abcabc", "uvwxyz", strict=True))
    ]
    out = spark.batch(builder.build(), [row(wire.RECORDS, *cells)])
    assert sent(out) == [
        *((b"a", b"u!"), (b"b", b"v!"), (b"c", b"w!")),
        *((b"a", b"u!x!"), (b"b", b"v!y!"), (b"c", b"w!z!")),
    ]
    assert report(out).threads == ThreadFigures((2, 2, 2))  # each has one key


class _Echo(ms.Processor):
    def process(self, record: ms.Record) -> None:
        self.context.forward(record)


class _Ticking(_Echo):
    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        context.schedule(10, ms.wall_clock, lambda now: context.forward(ms.Record(None, str(now), now)))


class _Failing(_Echo):
    closed = 0

    def process(self, record: ms.Record) -> None:
        raise LookupError("no such thing")

    def close(self) -> None:
        type(self).closed += 1


class _Forwarding(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.forward(record)


class _CountingTwice(ms.Processor):
    """Counts each key in two stores."""

    def init(self, context: ms.ProcessorContext) -> None:
        self._context = context
        self._stores = [context.state_store("first"), context.state_store("second")]

    def process(self, record: ms.Record) -> None:
        counts = []
        for store in self._stores:
            counts.append((store.get(record.key) or 0) + 1)
            store.put(record.key, counts[-1])
        self._context.forward(record.with_value(f"{counts[0]} {counts[1]}"))


class TestPartitionTimesOfReaders:
    """Spark's state keeps the partition times that readers in front of the shuffle report."""

    def topology(self, **source: Any) -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.stream("in", **source).to("out")
        return builder.build()

    def times(self, ms: int) -> Row:
        payload = encode_times({TopicPartition("in", 0): ms})
        return Row(**{**row(wire.TIMES).asDict(), "payload": payload})

    def test_are_reported_in_the_first_micro_batch_of_a_run(self, spark: Spark) -> None:
        timed = self.topology(timestamp=ms.timestamps.use_partition_time)
        assert report(spark.batch(timed, [row(wire.TICK)])).times == {}
        assert spark.batch(timed, [self.times(70)]) == []
        spark.batch(timed, [self.times(90)], commit=False)  # an attempt that fails
        spark.batch(timed, [self.times(60)])
        assert report(spark.batch(timed, [row(wire.TICK)])).times == {TopicPartition("in", 0): 70}

    def test_are_deleted_when_no_timestamp_extractor_is_left(self, spark: Spark) -> None:
        timed = self.topology(timestamp=ms.timestamps.use_partition_time)
        spark.batch(timed, [self.times(70)])
        spark.batch(self.topology(), [row(wire.TICK)])
        assert spark.head is None

    def test_are_taken_over_from_a_task_that_kept_state(self, spark: Spark) -> None:
        """The sub-topology counted before and now only sends: its counts are deleted, the partition time remains."""
        extractor = ms.timestamps.use_partition_time
        builder = ms.StreamsBuilder()
        builder.stream("in", timestamp=extractor).group_by_key().count(store="counts")
        spark.batch(builder.build(), [row(wire.RECORDS, ("a", "x", 70))])
        assert spark.log
        assert report(spark.batch(self.topology(timestamp=extractor), [row(wire.TICK)])).times == {
            TopicPartition("in", 0): 70
        }
        assert not spark.log


def test_the_rebuild_snapshot_is_sent_after_all_earlier_records_are_acknowledged(spark: Spark) -> None:
    """A crash in between must not leave a snapshot without the changes of its micro-batch."""
    builder = ms.StreamsBuilder()
    in_kafka = ms.stores.options("counts", changelog="kafka")
    builder.stream("in").group_by_key().count(store=in_kafka).to_stream().to("out", value=ms.serdes.int64)
    spark.sender = RecordingSender()
    SENT.clear()
    spark.batch(builder.build(), [row(wire.RECORDS, ("a", "x", 70))])
    assert SENT == ["out", "app-counts-changelog", "acknowledged", "app-commits", "acknowledged"]
