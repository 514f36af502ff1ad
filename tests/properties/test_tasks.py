"""A topology has the same results however its records are cut into batches, steps and tasks.

Topologies consist of a few operators. Each runs with batches of 1, of 7, and with all records at once; in one task, or in a new one
after every step, which has only the stores and a snapshot that was converted to JSON and back. The records that it sends (per
sub-topology and topic), stores, drops and commits must be the same every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.model.ids import TopicPartition
from millstream.drivers.spark.executor.snapshots import snapshot_from_json, snapshot_to_json
from unit.helpers import Host, raw

from .engines import Visits

Stream = ms.KStream[Any, Any]
Operator = Callable[[ms.StreamsBuilder, Stream, int], Stream]
TEXT, INT, JSON = ms.serdes.string, ms.serdes.int64, ms.serdes.json


class Seen(ms.Processor):
    """Numbers the records of each key, and adds stream time as a header."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        (name,) = context._stores  # type: ignore[attr-defined]
        self.counts = context.state_store(name)

    def process(self, record: ms.Record) -> None:
        key = record.key or ""
        count = (self.counts.get(key) or 0) + 1
        self.counts.put(key, count)
        headers = (*record.headers, ("stream-time", str(self.context.stream_time_ms).encode()))
        self.context.forward(record.with_value(f"{record.value}#{count}").with_headers(headers))


class ReadsBack(ms.Processor):
    """Puts records into a store, and forwards what it then reads from the store."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        (name,) = context._stores  # type: ignore[attr-defined]
        self.store = context.state_store(name)

    def process(self, record: ms.Record) -> None:
        lookup = self.lookup(record.key or "", record.value, record.timestamp * 10_000)
        self.context.forward(record.with_value(str(lookup)))

    def lookup(self, key: str, value: str | None, timestamp: int) -> object:
        raise NotImplementedError


class InWindows(ReadsBack):
    def lookup(self, key: str, value: str | None, timestamp: int) -> object:
        self.store.put(key, value, timestamp)
        return [*self.store.fetch(key, timestamp - 70_000, timestamp), *self.store.reverse_all()]


class InSessions(ReadsBack):
    def lookup(self, key: str, value: str | None, timestamp: int) -> object:
        merged = list(self.store.find_sessions(key, timestamp - 20_000, timestamp + 20_000))
        for session, _ in merged:
            self.store.remove(session)
        start = min([timestamp, *(session.start for session, _ in merged)])
        end = max([timestamp, *(session.end for session, _ in merged)])
        self.store.put(ms.Windowed(key, start, end), str(value) + "".join(v for _, v in merged))
        return list(self.store.all())


class InVersions(ReadsBack):
    def lookup(self, key: str, value: str | None, timestamp: int) -> object:
        return (
            self.store.put(key, value, timestamp),
            self.store.get(key),
            self.store.get(key, timestamp - 50_000),
        )


class InKeys(ReadsBack):
    def lookup(self, key: str, value: str | None, timestamp: int) -> object:
        other = self.store.get("a")
        self.store.put(key, value)
        return other, list(self.store.all())


def with_store(
    processor: Callable[[], ms.Processor], make: Callable[..., ms.stores.StoreSpec], **options: Any
) -> Operator:
    def operator(builder: ms.StreamsBuilder, stream: Stream, number: int) -> Stream:
        builder.add_state_store(make(f"store-{number}", TEXT, TEXT, **options))
        return stream.process_values(processor, stores=[f"store-{number}"])

    return operator


class Ticks(ms.Processor):
    """Forwards records, and a tick whenever stream time has advanced."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        context.schedule(5, ms.stream_time, self.tick)

    def process(self, record: ms.Record) -> None:
        self.context.forward(record)

    def tick(self, now_ms: int) -> None:
        self.context.forward(ms.Record("tick", str(now_ms), now_ms))


class Alarms(Ticks):
    """Starts and stops its punctuation on request of a record."""

    def init(self, context: ms.ProcessorContext) -> None:
        self.context = context

    def process(self, record: ms.Record) -> None:
        running = self.context.scheduled(self.tick)
        if record.key == "a" and not running:
            self.context.schedule(3, ms.stream_time, self.tick)
        elif record.key == "b":
            for schedule in running:
                schedule.cancel()
        self.context.forward(record)


def seen(builder: ms.StreamsBuilder, stream: Stream, number: int) -> Stream:
    builder.add_state_store(ms.stores.key_value(f"seen-{number}", TEXT, INT))
    return stream.process_values(Seen, stores=[f"seen-{number}"])


def fails(value: Any) -> Any:
    if value is not None and "c" in value:
        raise LookupError("c")
    return value


def append(key: Any, value: Any, items: list[Any]) -> list[Any] | None:
    items.append(value)
    return items if len(items) < 4 else None


def by_length(builder: ms.StreamsBuilder, stream: Stream, number: int) -> Stream:
    rows = stream.to_table(store=f"rows-{number}")
    groups = rows.group_by(lambda k, v: (str(len(v)), v), name=f"lengths-{number}")
    return groups.count(store=f"lengths-{number}-store").to_stream().map_values(str)


def per_session(stream: Stream, emit: ms.EmitStrategy, number: int) -> Stream:
    windowed = stream.group_by_key(name=f"grouped-s-{number}").windowed_by(
        ms.SessionWindows(2, grace=1), emit=emit
    )
    return windowed.count(store=f"s-{number}").to_stream(lambda window, _: window.key).map_values(str)


def sliding(stream: Stream, emit: ms.EmitStrategy, number: int) -> Stream:
    windowed = stream.group_by_key(name=f"grouped-l-{number}").windowed_by(
        ms.SlidingWindows(3, grace=2), emit=emit
    )
    collected = windowed.aggregate(list, append, value=JSON, store=f"l-{number}")
    return collected.to_stream(lambda window, _: window.key).map_values(json.dumps)


def cogrouped(stream: Stream, number: int) -> Stream:
    """Cogroup all records with those of even length: two nodes, each with its own stream time, write to one store.

    Both read one repartition topic. With a topic each, micro-batches would decide which of two equal timestamps comes first.
    """
    stream = stream.repartition(name=f"co-{number}")
    grouped = stream.group_by_key(name=f"co-{number}-a")
    even = stream.filter(lambda k, v: v is None or len(v) % 2 == 0).group_by_key(name=f"co-{number}-b")
    both = even.cogroup(append).cogroup(grouped, append).windowed_by(ms.TumblingWindows(5, grace=1))
    rows = both.aggregate(list, value=JSON, store=f"co-{number}").to_stream(lambda window, _: window.key)
    return rows.map_values(json.dumps)


def final(builder: ms.StreamsBuilder, stream: Stream, number: int) -> Stream:
    """Emit the texts of all values of a window when it closes, in the order of aggregation, with deletions."""
    windowed = stream.group_by_key(name=f"final-{number}").windowed_by(ms.TumblingWindows(4, grace=1))
    collected = windowed.aggregate(list, append, value=JSON, store=f"final-{number}-store")
    until = ms.Suppressed.until_window_closes()
    rows = collected.suppress(until, store=f"final-{number}-held").to_stream(lambda window, _: window.key)
    return rows.map_values(json.dumps)


def suppressed(stream: Stream, until: ms.Suppressed, number: int) -> Stream:
    return stream.to_table(store=f"held-{number}-t").suppress(until, store=f"held-{number}").to_stream()


def per_window(stream: Stream, emit: ms.EmitStrategy, store: str) -> Stream:
    """Count in windows that overlap; both times and keys of the results differ from those of the records."""
    windowed = stream.group_by_key(name=f"grouped-{store}").windowed_by(
        ms.HoppingWindows(4, advance=2, grace=1), emit=emit
    )
    counts = windowed.count(store=store).to_stream(lambda window, _: window.key)
    return counts.map_values(str)


OPERATORS: dict[str, Operator] = {
    "filter": lambda b, s, n: s.filter(lambda k, v: v != "x"),
    "upper": lambda b, s, n: s.map_values(lambda v: v and v.upper()),
    "twice": lambda b, s, n: s.flat_map_values(lambda v: [v, v]),
    "swap": lambda b, s, n: s.map(lambda k, v: (v, k)),
    "rekey": lambda b, s, n: s.select_key(lambda k, v: (v or "-")[0]),
    "split": lambda b, s, n: s.split().branch(lambda k, v: k == "a").default()["0"],
    "fails": lambda b, s, n: s.map_values(fails),
    "seen": seen,
    "ticks": lambda b, s, n: s.process(Ticks),
    "repartition": lambda b, s, n: s.repartition(name=f"moved-{n}"),
    "count": lambda b, s, n: (
        s.group_by_key(name=f"counts-{n}").count(store=f"counts-{n}-store").to_stream().map_values(str)
    ),
    "longest": lambda b, s, n: (
        s.group_by_key(name=f"longest-{n}").reduce(max, store=f"longest-{n}-store").to_stream()
    ),
    "collect": lambda b, s, n: (
        s.group_by_key(name=f"all-{n}")
        .aggregate(list, append, value=JSON, store=f"all-{n}-store")
        .to_stream()
        .map_values(json.dumps)
    ),
    "table": lambda b, s, n: (
        s.to_table(store=f"t-{n}").filter(lambda k, v: v > "a", store=f"f-{n}").to_stream()
    ),
    "by length": by_length,
    "per window": lambda b, s, n: per_window(s, ms.on_window_update, f"w-{n}"),
    "per closed window": lambda b, s, n: per_window(s, ms.on_window_close, f"w-{n}"),
    "per session": lambda b, s, n: per_session(s, ms.on_window_update, n),
    "per closed session": lambda b, s, n: per_session(s, ms.on_window_close, n),
    "per sliding window": lambda b, s, n: sliding(s, ms.on_window_update, n),
    "per closed sliding window": lambda b, s, n: sliding(s, ms.on_window_close, n),
    "cogrouped": lambda b, s, n: cogrouped(s, n),
    "final": final,
    "suppressed": lambda b, s, n: suppressed(s, ms.Suppressed.until_time_limit(3), n),
    "suppressed a few": lambda b, s, n: suppressed(
        s, ms.Suppressed.until_time_limit(9, max_records=2, max_bytes=80), n
    ),
    "windows": with_store(InWindows, ms.stores.window, retention=70_000, size=10_000),
    "windows with duplicates": with_store(
        InWindows, ms.stores.window, retention=70_000, size=10_000, retain_duplicates=True
    ),
    "sessions": with_store(InSessions, ms.stores.session, retention=70_000),
    "versions": with_store(InVersions, ms.stores.versioned, history_retention=70_000),
    "expiring": with_store(InKeys, ms.stores.key_value, ttl=10),
    "recent": with_store(InKeys, ms.stores.lru, capacity=2),
}


def topology(operators: Sequence[str], *, topics: Sequence[str]) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream: Stream = builder.stream(topics)
    for number, name in enumerate(operators):
        operator = OPERATORS.get(name) or (lambda b, s, n: s.process(Alarms))
        stream.to("before", name=f"before-{number}")
        stream = operator(builder, stream, number)
    stream.to("out", name="end")
    return builder.build()


@dataclass
class Result:
    sent: dict[tuple[int, str], list[Any]] = field(default_factory=dict)
    stores: dict[str, list[Any]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    processed: int = 0
    punctuated: int = 0
    committable: dict[TopicPartition, int] = field(default_factory=dict)


def through_json(snapshot: Snapshot) -> Snapshot:
    read = snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot))))
    assert read is not None
    return read


class Run:
    """Runs all parts of a topology, every topic with one partition."""

    def __init__(self, topology: ms.Topology, *, budget: int | None, cut: bool, visits: Visits) -> None:
        policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
        self.plan = topology.plan("app")
        self.hosts = [Host(topology, sub=sub.id, policies=policies) for sub in self.plan.subtopologies]
        self.budget, self.cut, self.visits, self.result = budget, cut, visits, Result()

    def process(self, rows: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Run a batch of rows with their topics to the end, through internal topics."""
        waiting = list(rows)
        while waiting:
            fed = [host for host in self.hosts if self.feed(host, waiting)]
            waiting = [row for host in fed for row in self.steps(host)]

    def feed(self, host: Host, rows: list[tuple[str, tuple[Any, ...]]]) -> bool:
        """Feed a part the rows of its topics; return whether there are any."""
        topics = {topic for topic, _ in rows} & set(host.sub.source_topics)
        for topic in sorted(topics):
            host.feed(topic, [row for target, row in rows if target == topic])
        return bool(topics)

    def steps(self, host: Host) -> list[tuple[str, tuple[Any, ...]]]:
        """Take at least one step, like a micro-batch: it also reports records that were dropped while they were fed."""
        rows, buffered = [], True
        while buffered:
            rows.extend(self.carry_out(host.sub.id, host.step(budget=self.budget)))
            buffered = host.task.buffered_count() > 0
            if self.cut:
                self.visits["cut with records waiting"] += buffered
                host.restart(through_json)
        return rows

    def carry_out(self, sub: int, outcome: Outcome) -> list[tuple[str, tuple[Any, ...]]]:
        result, read_again = self.result, []
        for reason, count in outcome.metrics.dropped.items():
            result.dropped[reason] = result.dropped.get(reason, 0) + count
        result.processed += outcome.metrics.processed
        result.punctuated += outcome.metrics.punctuated
        result.committable.update(outcome.committable)
        for topic, records in outcome.sends:
            headers = records.headers or [()] * len(records)
            rows = list(zip(records.keys, records.values, records.timestamps, headers, strict=True))
            result.sent.setdefault((sub, topic), []).extend(rows)
            read_again.extend((topic, row) for row in rows if topic in self.plan.subtopology_of)
        return read_again

    def finish(self) -> Result:
        for host in self.hosts:
            self.result.stores.update({name: content(host.store(name)) for name in host.sub.stores})
            host.task.close()
        return self.result


def content(store: Any) -> list[Any]:
    """List what a store holds; a versioned store cannot be walked."""
    return list(store.all()) if hasattr(store, "all") else [store.get(key) for key in ("", "a", "b", "c")]


MODES: list[tuple[int, int | None, bool]] = [
    (1, None, False),
    (1, None, True),
    (7, None, True),
    (7, 3, True),
    (1000, None, False),
    (1000, None, True),
    (1000, 5, False),
    (1000, 5, True),
    (1000, 1, True),
]
"""Size of a batch, records per step, whether every step has a new task."""

KEYS = st.sampled_from(["a", "b", "c", None])
VALUES = st.sampled_from(["a", "b", "x", "cc", "aab", None])
HEADERS = st.sampled_from([(), (), (("h", b"1"), ("h", None))])
ROWS = st.lists(st.tuples(KEYS, VALUES, st.integers(0, 30), HEADERS), min_size=5, max_size=25)


def check_all_modes(
    make: Callable[[], ms.Topology], rows: list[tuple[str, tuple[Any, ...]]], visits: Visits
) -> None:
    results = []
    for batch, budget, cut in MODES:
        run = Run(make(), budget=budget, cut=cut, visits=visits)
        for first in range(0, len(rows), batch):
            run.process(rows[first : first + batch])
        results.append(run.finish())
    for mode, result in zip(MODES, results, strict=True):
        for attribute in ("sent", "stores", "dropped", "processed", "punctuated", "committable"):
            assert getattr(result, attribute) == getattr(results[0], attribute), (
                f"{attribute} of batch, budget, cut = {mode}"
            )
    visits["kept something"] += any(results[0].stores.values())
    visits["dropped something"] += bool(results[0].dropped)
    visits["dead letters"] += any(topic == "dead" for _, topic in results[0].sent)
    visits["punctuated"] += bool(results[0].punctuated)
    visits["several parts"] += len(make().plan().subtopologies) > 1


def test_one_topic_with_timestamps_in_any_order_has_the_same_results() -> None:
    visits = Visits()

    @settings(max_examples=120)
    @given(st.lists(st.sampled_from(sorted([*OPERATORS, "fails", "fails"])), min_size=1, max_size=4), ROWS)
    def same(operators: list[str], rows: list[tuple[Any, ...]]) -> None:
        check_all_modes(lambda: topology(operators, topics=["in"]), [("in", row) for row in rows], visits)

    same()
    visits.demand(
        **{
            "cut with records waiting": 200,
            "kept something": 15,
            "dropped something": 10,
            "dead letters": 5,
            "punctuated": 5,
            "several parts": 15,
        }
    )


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_each_operator_alone_has_the_same_results(operator: str) -> None:
    @settings(max_examples=4)
    @given(ROWS)
    def same(rows: list[tuple[Any, ...]]) -> None:
        check_all_modes(lambda: topology([operator], topics=["in"]), [("in", row) for row in rows], Visits())

    same()


def test_two_topics_with_timestamps_in_order_have_the_same_results() -> None:
    """With timestamps out of order, the choice between topics would depend on which records are buffered."""
    visits = Visits()

    @settings(max_examples=25)
    @given(
        st.lists(
            st.sampled_from(["filter", "twice", "seen", "ticks", "fails", "count"]), min_size=1, max_size=3
        ),
        st.lists(st.tuples(st.sampled_from(["in", "other"]), KEYS, VALUES), min_size=1, max_size=25),
    )
    def same(operators: list[str], rows: list[tuple[str, Any, Any]]) -> None:
        visits["both topics"] += len({topic for topic, *_ in rows}) == 2
        in_order = [
            (topic, (key, value, timestamp, ())) for timestamp, (topic, key, value) in enumerate(rows)
        ]
        check_all_modes(lambda: topology(operators, topics=["in", "other"]), in_order, visits)

    same()
    visits.demand(**{"both topics": 10, "cut with records waiting": 50})


def test_punctuations_that_records_schedule_and_cancel_have_the_same_results() -> None:
    visits = Visits()

    @settings(max_examples=25)
    @given(st.lists(st.sampled_from(["filter", "seen"]), max_size=1), ROWS)
    def same(operators: list[str], rows: list[tuple[Any, ...]]) -> None:
        check_all_modes(
            lambda: topology([*operators, "alarms"], topics=["in"]), [("in", row) for row in rows], visits
        )

    same()
    visits.demand(punctuated=5)


def test_a_timestamp_extractor_sees_the_same_partition_time() -> None:
    def from_value(record: ms.ConsumerRecord, partition_time: int) -> int:
        return partition_time if record.value is None else len(record.value) * 5 - 4

    def make() -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.stream("in", timestamp=from_value).to("out")
        return builder.build()

    @settings(max_examples=25)
    @example(["a", ""])  # the last micro-batch has only a record that is dropped
    @given(st.lists(st.none() | st.text("ab", max_size=6), min_size=1, max_size=20))
    def same(values: list[str | None]) -> None:
        check_all_modes(make, [("in", ("k", raw(value), 0, ())) for value in values], Visits())

    same()
