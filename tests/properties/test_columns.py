"""Processing in columns has the same outputs, stores, drops, notices, offsets and snapshots as record by record.

Random chains of operators process good and bad records, cut into random steps, once in columns and once record by record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine import record_processing
from millstream.core.engine.caching import Cache
from millstream.core.engine.operators import table_joins
from millstream.core.engine.operators.windows import session_columns, window_columns
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import MillstreamError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import Threads
from millstream.core.state.memory import MemoryStores
from unit.helpers import columnar

Stream = ms.KStream[Any, Any]
TEXT, INT, BYTES, JSON = ms.serdes.string, ms.serdes.int64, ms.serdes.bytes, ms.serdes.json


def refusing_b(text: str) -> bytes:
    if "b" in text:
        raise ValueError("no b, please")
    return text.encode()


PICKY: ms.Serde[Any] = ms.serdes.of(refusing_b, lambda data: data.decode(), name="picky", immutable=True)


def fails(value: Any) -> Any:
    if value is not None and "c" in str(value):
        raise LookupError("c")
    if value == "aa":
        raise StopIteration
    return value


def pair_or_single(key: Any, value: Any) -> Any:
    return (value, key) if value != "a" else (key,)


def with_two_consumers(table: ms.KTable[Any, Any]) -> Stream:
    table.to_stream().to("counted", key=TEXT, value=JSON)
    return table.to_stream()


OPERATORS: dict[str, Callable[[Stream], Stream]] = {
    "filter": lambda s: s.filter(lambda key, value: value != "b"),
    "filter_not": lambda s: s.filter_not(lambda key, value: fails(value) == "b"),
    "map": lambda s: s.map(pair_or_single),
    "map_values": lambda s: s.map_values(fails),
    "map_values_with_key": lambda s: s.map_values(lambda key, value: f"{key}{value}", with_key=True),
    "select_key": lambda s: s.select_key(lambda key, value: fails(value)),
    "expression": lambda s: s.filter((ms.col() > "a") & ~(ms.col() == "b")),
    "not_expression": lambda s: s.filter_not(ms.col() >= 2),
    "computed": lambda s: s.map_values(ms.col() + 1),
    "first": lambda s: s.map_values(ms.col(0)),  # type: ignore[arg-type]
    "merge": lambda s: s.merge(s),
    "flat_map_values": lambda s: s.flat_map_values(lambda value: [value, value]),
    "count": lambda s: s.group_by_key(key=TEXT, value=JSON).count().to_stream(),
    "sum": lambda s: s.group_by_key(key=TEXT, value=JSON).sum().to_stream(),
    "sum_of_numbers": lambda s: s.group_by_key(key=TEXT, value=INT).sum().to_stream(),
    "min": lambda s: s.group_by_key(key=TEXT, value=JSON).min().to_stream(),
    "max": lambda s: s.group_by_key(key=TEXT, value=TEXT).max().to_stream(),
    "count_by_picky_key": lambda s: s.group_by_key(key=PICKY, value=JSON).count().to_stream(),
    "count_of_a_table": lambda s: (
        s.group_by_key(key=TEXT, value=JSON).count().filter(lambda key, n: n > 1).to_stream()
    ),
    "count_for_two": lambda s: with_two_consumers(s.group_by_key(key=TEXT, value=JSON).count()),
    "to": lambda s: (s.to("seen", key=TEXT, value=JSON), s)[1],
    "mean": lambda s: s.group_by_key(key=TEXT, value=JSON).mean().to_stream(),
    "mapped_table": lambda s: s.group_by_key(key=TEXT, value=JSON).count().map_values(fails).to_stream(),
    "by_value": lambda s: s.select_key(ms.col()),
    "per_window": lambda s: (
        s.group_by_key(key=TEXT, value=JSON).windowed_by(ms.HoppingWindows(3, 2, grace=1)).max().to_stream()
    ),
    "per_key_and_window": lambda s: (
        s.group_by_key(key=TEXT, value=JSON)
        .windowed_by(ms.TumblingWindows(3, grace=0))
        .mean()
        .to_stream(lambda window, mean: window.key)
    ),
}
SINKS: dict[str, tuple[Any, Any]] = {
    "own": (None, JSON),
    "json": (TEXT, JSON),
    "text": (TEXT, TEXT),
    "bytes": (TEXT, BYTES),
    "number": (TEXT, INT),
    "picky": (PICKY, JSON),
}


@dataclass
class Run:
    """The results of all steps of a topology."""

    outcomes: list[Outcome] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    stored: list[dict[str, list[tuple[bytes, bytes]]]] = field(default_factory=list)
    error: str = ""


def run(
    topology: ms.Topology,
    steps: list[Any],
    policy: Any,
    cache_bytes: int = 0,
    threads: Threads | None = None,
    topics: tuple[str, str] | None = None,
) -> Run:
    """Run each sub-topology. The first field of a row is its partition or, if there are two topics, the number of its topic."""
    plan, done = topology.plan("app"), Run()
    policies = ErrorPolicies(policy, policy, policy, "dead")
    for sub in plan.subtopologies:
        stores, offsets = MemoryStores(), {0: 0, 1: 0}
        task = Task(
            sub,
            TaskId(sub.id, 0),
            application_id="app",
            stores=stores,
            policies=policies,
            cache_bytes=cache_bytes,
            threads=threads,
        )
        task.init(0)
        (topic, *_) = sub.source_topics
        inputs = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        if topics is not None:
            inputs = [TopicPartition(name, 0) for name in topics]
        try:
            for rows, budget in steps:
                for partition in (0, 1):
                    partition_rows = [row[1:] for row in rows if row[0] == partition]
                    first = offsets[partition]
                    offsets[partition] += len(partition_rows)
                    keys, values, timestamps, headers = (
                        map(list, zip(*partition_rows)) if partition_rows else ([], [], [], [])
                    )
                    numbers = list(range(first, offsets[partition]))
                    fed = Records(keys, values, timestamps, numbers, headers if any(headers) else None)
                    task.feed(inputs[partition], fed, offsets[partition])
                outcome = task.step(0, budget)
                stores.apply(outcome.changes, outcome.dropped_slices)
                done.outcomes.append(outcome)
                done.snapshots.append(task.snapshot())
                done.stored.append(
                    {name: rows for name in stores.names() if (rows := [*stores.open(name).scan(None, None)])}
                )
        except MillstreamError as error:
            done.error = str(error)
    return done


def record_by_record(sub: object, compiled: object) -> dict[str, Any]:
    return {}


def built(source: tuple[Any, Any], operators: list[str], sink: str) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream: Stream = builder.stream("in", key=source[0], value=source[1])
    for operator in operators:
        stream = OPERATORS[operator](stream)
    key, value = SINKS[sink]
    stream.to("out", key=key, value=value)
    return builder.build()


KEYS = st.sampled_from([None, b"", b"a", b"b", b"ab", b"a\x00", b"\xff", b"12345678"])
VALUES = st.sampled_from([None, b"", b"a", b"b", b"c", b"aa", b"\xe2\x82", b'"a"', b"7", b"12345678"])
HEADERS = st.sampled_from([(), (), (("h", b"1"),)])
ROWS = st.tuples(st.integers(0, 1), KEYS, VALUES, st.integers(-1, 9), HEADERS)
STEPS = st.lists(
    st.tuples(st.lists(ROWS, max_size=12), st.sampled_from([None, 0, 3])), min_size=1, max_size=4
)
SOURCES = st.tuples(st.sampled_from([TEXT, BYTES, INT, PICKY]), st.sampled_from([TEXT, BYTES, JSON, INT]))


@settings(max_examples=400)
@given(
    source=SOURCES,
    operators=st.lists(st.sampled_from(sorted(OPERATORS)), max_size=4),
    sink=st.sampled_from(sorted(SINKS)),
    steps=STEPS,
    policy=st.sampled_from(["fail", "skip", "dead_letter"]),
    cache_bytes=st.sampled_from([0, 1 << 20]),
)
def test_processing_in_columns_equals_processing_record_by_record(
    source: Any, operators: list[str], sink: str, steps: Any, policy: str, cache_bytes: int
) -> None:
    in_columns = run(built(source, operators, sink), steps, policy, cache_bytes)
    with patch.object(record_processing, "columnar_entries", record_by_record):
        by_records = run(built(source, operators, sink), steps, policy, cache_bytes)
    assert without_traces(in_columns) == without_traces(by_records)


def without_traces(done: Run) -> Any:
    """Leave out locations in the engine and sizes of caches, which differ between the two forms."""
    sends = [
        [
            (
                topic,
                sent.keys,
                sent.values,
                sent.timestamps,
                sent.partitions,
                without_trace_headers(sent.headers),
            )
            for topic, sent in outcome.sends
        ]
        for outcome in done.outcomes
    ]
    facts = [
        (
            o.changes,
            o.committable,
            o.stream_time_ms,
            replace(o.metrics, cache_bytes=0),
            [*map(without_location, o.notices)],
            o.buffered,
        )
        for o in done.outcomes
    ]
    return sends, facts, done.snapshots, without_location(done.error)


def without_location(message: str) -> str:
    return re.sub(r" \([^()]*operators[^()]*, line \d+, in \w+\)", "", message)


TRACES = ("millstream.error.traceback", "__streams.errors.stacktrace")


def without_trace_headers(headers: Any) -> Any:
    return headers and [[h for h in row_headers if h[0] not in TRACES] for row_headers in headers]


WINDOWS = [
    ms.TumblingWindows(3, grace=0),
    ms.TumblingWindows(3, grace=2),
    ms.HoppingWindows(4, 2, grace=1),
    ms.HoppingWindows(5, 3, grace=0),
    ms.TumblingWindows(30_000, grace=0),
    ms.HoppingWindows(60_000, 20_000, grace=10_000),
]
EMITS = [ms.on_window_update, ms.on_window_close, ms.EmitStrategy.on_window_close(close_idle_after=5)]
LATE: dict[str, Callable[[Stream], object] | None] = {
    "nobody": None,
    "elsewhere": lambda late: late.to("late", key=TEXT, value=JSON),
    "together": lambda late: late.to("out", key=TEXT, value=JSON),
    "counted": lambda late: late.group_by_key(key=TEXT, value=JSON).count().to_stream().to("out", value=JSON),
    "mapped": lambda late: late.map_values(fails).to("late", value=JSON),
}
BEHIND: dict[str, Callable[[Stream], Stream]] = {
    "nothing": lambda s: s,
    "its key": lambda s: s.select_key(lambda window, value: window.key),
    "expression": lambda s: s.filter(ms.col() >= 2).map_values(ms.col() - 1),
    "function": lambda s: s.map_values(lambda value: f"{value}"),
    "functions": lambda s: s.map_values(lambda value: f"{value}").filter(lambda key, value: key.start != 3),
}


def windowed(
    source: Any, windows: Any, emit: Any, late: str, fold: str, behind: str, key: Any
) -> ms.Topology:
    builder = ms.StreamsBuilder()
    grouped = builder.stream("in", key=source[0], value=source[1]).group_by_key()
    folding = grouped.windowed_by(windows, emit=emit, late=LATE[late])
    stream = BEHIND[behind](getattr(folding, fold)(store="windows").to_stream())
    stream.to("out", key=key, value=JSON)
    return builder.build()


FAR_APART = st.tuples(st.integers(0, 1), KEYS, VALUES, st.integers(0, 18).map(lambda n: n * 10_000), HEADERS)


@settings(max_examples=600)
@given(
    source=SOURCES,
    windows=st.sampled_from(WINDOWS),
    emit=st.sampled_from(EMITS),
    late=st.sampled_from(sorted(LATE)),
    fold=st.sampled_from(["count", "sum", "min", "max", "mean"]),
    behind=st.sampled_from(sorted(BEHIND)),
    key=st.sampled_from([None, None, None, TEXT, ms.serdes.time_windowed(BYTES, 3)]),
    steps=st.one_of(
        STEPS,
        st.lists(
            st.tuples(st.lists(FAR_APART, max_size=12), st.sampled_from([None, 3])), min_size=1, max_size=4
        ),
    ),
    policy=st.sampled_from(["fail", "skip", "dead_letter"]),
)
def test_windows_in_columns_equal_windows_record_by_record(steps: Any, policy: str, **made: Any) -> None:
    with patch.object(window_columns, "_APART", 0):
        in_columns = run(windowed(**made), steps, policy)
    with patch.object(record_processing, "columnar_entries", record_by_record):
        by_records = run(windowed(**made), steps, policy)
    assert without_traces(in_columns) == without_traces(by_records)


def sessions(source: Any, gap: int, grace: int, keeps: int, fold: str, behind: str, key: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    grouped = builder.stream("in", key=source[0], value=source[1]).group_by_key()
    store = ms.stores.options("sessions", retention=gap + grace + keeps)
    folded = getattr(grouped.windowed_by(ms.SessionWindows(gap, grace=grace)), fold)(store=store)
    BEHIND[behind](folded.to_stream()).to("out", key=key, value=JSON)
    return builder.build()


def with_stores_instead_of_changes(done: Run) -> Any:
    """Compare stores instead of changes and slices: in columns, a session that expires or is merged in the same step is never written."""
    sends, facts, snapshots, error = without_traces(done)
    times = [{name: kept["time"] for name, kept in snapshot.stores.items()} for snapshot in snapshots]
    others = [replace(snapshot, stores={}) for snapshot in snapshots]
    return sends, [fact[1:] for fact in facts], times, others, error, done.stored


@settings(max_examples=800)
@given(
    source=SOURCES,
    gap=st.sampled_from([1, 2, 4, 20_000]),
    grace=st.sampled_from([0, 1, 3, 30_000]),
    keeps=st.sampled_from([0, 1, 5]),
    fold=st.sampled_from(["count", "sum", "min", "max", "mean"]),
    behind=st.sampled_from(sorted(BEHIND)),
    key=st.sampled_from([None, None, None, TEXT, ms.serdes.session_windowed(BYTES)]),
    steps=st.one_of(
        STEPS,
        st.lists(
            st.tuples(st.lists(FAR_APART, max_size=12), st.sampled_from([None, 3])), min_size=1, max_size=4
        ),
    ),
    most_stored=st.sampled_from([0, 1, 64]),
    policy=st.sampled_from(["fail", "skip", "dead_letter"]),
)
def test_sessions_in_columns_equal_sessions_record_by_record(
    steps: Any, policy: str, most_stored: int, **made: Any
) -> None:
    with patch.object(session_columns, "_MOST_STORED", most_stored):
        in_columns = run(sessions(**made), steps, policy)
    with patch.object(record_processing, "columnar_entries", record_by_record):
        by_records = run(sessions(**made), steps, policy)
    assert with_stores_instead_of_changes(in_columns) == with_stores_instead_of_changes(by_records)


JOINERS: dict[str, dict[str, Any]] = {
    "inner": {"join": lambda value, row: fails(f"{value}{row}")},
    "left": {"left_join": lambda value, row: fails(f"{value}{row}")},
    "with key": {"join": lambda key, value, row: f"{key}{value}{row}"},
    "left with key": {"left_join": lambda key, value, row: f"{key}{value}{row}"},
}


def joined(source: Any, rows: Any, joiner: str, sink: str, **table: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    other = builder.table("rows", key=rows[0], value=rows[1], **table)
    ((method, function),) = JOINERS[joiner].items()
    stream = builder.stream("in", key=source[0], value=source[1])
    results = getattr(stream, method)(other, function, with_key=joiner.endswith("key"))
    results.to("out", key=SINKS[sink][0], value=SINKS[sink][1])
    return builder.build()


@settings(max_examples=400)
@given(
    source=SOURCES,
    rows=SOURCES,
    joiner=st.sampled_from(sorted(JOINERS)),
    sink=st.sampled_from(["own", "json", "text", "picky"]),
    few=st.sampled_from([0, 0, 3]),
    steps=STEPS,
    policy=st.sampled_from(["fail", "skip", "skip", "dead_letter"]),
)
def test_a_table_join_in_columns_equals_a_table_join_record_by_record(
    steps: Any, policy: str, few: int, **made: Any
) -> None:
    with patch.object(table_joins, "FEW", few):
        in_columns = run(joined(**made), steps, policy, topics=("rows", "in"))
    with patch.object(record_processing, "columnar_entries", record_by_record):
        by_records = run(joined(**made), steps, policy, topics=("rows", "in"))
    assert without_traces(in_columns) == without_traces(by_records)


@pytest.mark.parametrize("joiner", sorted(JOINERS))
def test_joins_with_a_table_run_in_columns(joiner: str) -> None:
    topology = joined((TEXT, TEXT), (TEXT, TEXT), joiner, "json", store="table")
    assert columnar(topology) == ["KSTREAM-SOURCE-0000000002"]


def test_a_join_with_a_versioned_table_runs_record_by_record() -> None:
    store = ms.stores.options("table", history_retention=5)
    topology = joined((TEXT, TEXT), (TEXT, TEXT), "inner", "json", store=store)
    assert columnar(topology) == []


@pytest.mark.parametrize(
    ("first", "counts"),
    [(2, [b"1", b"1", b"1"]), (3, [b"1", b"1", None, b"2"])],
    ids=["expired", "the oldest that is readable"],
)
def test_in_columns_a_session_is_merged_until_it_expires(first: int, counts: list[bytes | None]) -> None:
    """The retention is 7 ms. As in Kafka Streams, a session that ends so long before the newest one cannot be read."""
    made = sessions((TEXT, INT), 4, 3, 0, "count", "nothing", None)
    rows = [(0, key, None, time, ()) for key, time in [(b"a", first), (b"b", 9), (b"a", 5)]]
    in_columns = run(made, [(rows, None)], "fail")
    with patch.object(record_processing, "columnar_entries", record_by_record):
        assert with_stores_instead_of_changes(
            run(made, [(rows, None)], "fail")
        ) == with_stores_instead_of_changes(in_columns)
    assert in_columns.outcomes[0].sends[0][1].values == counts


def test_in_columns_a_late_record_does_not_read_closed_sessions() -> None:
    made = sessions((TEXT, INT), 1, 0, 10_000, "count", "nothing", None)
    closed = [(0, b"a", None, 10 * number, ()) for number in range(100)]
    rows = [(0, b"a", None, 3, ()), (0, b"a", None, 1_000, ())]
    with patch.object(session_columns, "call_per_row", side_effect=AssertionError("not in columns")):
        done = run(made, [(closed, None), (rows, None)], "fail")
    assert done.outcomes[1].metrics.dropped == {"late for a session": 1}
    assert done.outcomes[1].sends[0][1].timestamps == [1_000]


def test_in_columns_a_session_value_that_its_serde_rejects_fails_only_its_record() -> None:
    made = sessions((TEXT, PICKY), 4, 0, 0, "max", "nothing", None)
    rows = [
        (0, key, value, 1, ()) for key, value in [(b"k", b"a"), (b"j", b"a"), (b"k", b"ab"), (b"j", b"c")]
    ]
    in_columns = run(made, [(rows, None)], "skip")
    assert in_columns.outcomes[0].sends[0][1].values == [b'"a"', b'"a"', b'"c"']


TENTHS: ms.Serde[Any] = ms.serdes.of(
    lambda number: f"{number:.1f}".encode(), lambda data: Decimal(data.decode()), name="tenths"
)
ROUNDED: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "float32": (ms.serdes.float32, JSON, lambda text: float(text)),
    "float64 of ints": (ms.serdes.float64, JSON, lambda text: len(text)),
    "int64 of bools": (INT, JSON, lambda text: text == "0.07"),
    "json of tuples": (JSON, JSON, lambda text: (text, [text])),
    "a serde that rounds": (TENTHS, TENTHS, Decimal),
}
"""Serdes of aggregates and of results, and functions from text to values that a store returns in another form."""


@pytest.mark.parametrize("policy", ["fail", "skip"])
@pytest.mark.parametrize("over", [None, WINDOWS[4], WINDOWS[5], ms.SessionWindows(20_000, grace=0)])
@pytest.mark.parametrize("fold", ["sum", "min", "max", "mean"])
@pytest.mark.parametrize("kept", sorted(ROUNDED))
def test_in_columns_the_next_aggregate_starts_from_the_value_that_the_store_returns(
    kept: str, fold: str, over: Any, policy: str
) -> None:
    serde, result, value_of = ROUNDED[kept]
    builder = ms.StreamsBuilder()
    grouped: Any = builder.stream("in").map_values(value_of).group_by_key(value=serde)
    folding = grouped if over is None else grouped.windowed_by(over)
    folded = getattr(folding, fold)(store="folded").to_stream()
    folded.to("out", value=JSON if fold == "mean" else result)
    texts = [b"0.07", b"0.07", b"0.16", b"x", b"0.07", b"0.1"]
    rows = [(0, b"k", text, time, ()) for time, text in enumerate(texts)]
    in_columns = run(builder.build(), [(rows, None)], policy)
    with patch.object(record_processing, "columnar_entries", record_by_record):
        by_records = run(builder.build(), [(rows, None)], policy)
    assert with_stores_instead_of_changes(in_columns) == with_stores_instead_of_changes(by_records)


class WithoutTruthValue:
    """A value that is neither true nor false, like an array of several numbers."""

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


@pytest.mark.parametrize("operator", ["filter", "filter_not"])
def test_a_condition_that_is_neither_true_nor_false_fails_only_its_record(operator: str) -> None:
    builder = ms.StreamsBuilder()
    stream: Stream = builder.stream("in", value=ms.serdes.pickle)
    getattr(stream, operator)(ms.col("x")).to("out", value=ms.serdes.pickle)
    assert columnar(builder.build())
    values: list[Any] = [True, WithoutTruthValue(), False, 1, None]
    rows = [(0, b"k", ms.serdes.pickle.serialize({"x": value}), 1, ()) for value in values]
    in_columns = run(builder.build(), [(rows, None)], "skip")
    with patch.object(record_processing, "columnar_entries", record_by_record):
        by_records = run(builder.build(), [(rows, None)], "skip")
    assert without_traces(in_columns) == without_traces(by_records)
    assert in_columns.outcomes[0].metrics.dropped == {"process error": 1}


def test_a_cache_takes_a_batch_in_columns() -> None:
    rows = [(0, key, b"7", 1, ()) for key in (b"k", b"j", b"k")]
    with patch.object(Cache, "_put_each", side_effect=AssertionError("not in columns")):
        done = run(built((TEXT, JSON), ["count"], "json"), [(rows, None), (rows, None)], "fail", 1 << 20)
    assert [outcome.sends[0][1].values for outcome in done.outcomes] == [[b"1", b"2"], [b"2", b"4"]]


@pytest.mark.parametrize("fold", ["count", "sum", "min", "max", "mean"])
def test_session_windows_run_in_columns(fold: str) -> None:
    topology = sessions((TEXT, INT), 5, 1, 0, fold, "nothing", None)
    assert columnar(topology) == ["KSTREAM-SOURCE-0000000000"]


@pytest.mark.parametrize("emit", EMITS)
@pytest.mark.parametrize("late", ["nobody", "elsewhere"])
@pytest.mark.parametrize("fold", ["count", "sum", "min", "max", "mean"])
@pytest.mark.parametrize("windows", [WINDOWS[0], WINDOWS[2]])
def test_time_windows_run_in_columns(windows: Any, emit: Any, late: str, fold: str) -> None:
    topology = windowed((TEXT, INT), windows, emit, late, fold, "nothing", None)
    assert columnar(topology) == ["KSTREAM-SOURCE-0000000000"]


@pytest.mark.parametrize(
    "operators",
    [
        [],
        ["count"],
        ["count", "map_values"],
        ["filter", "count"],
        ["map_values"],
        ["count", "flat_map_values"],
        ["count", "map_values", "filter"],
        ["sum"],
        ["expression", "computed", "filter", "not_expression", "min"],
        ["filter", "min"],
        ["max", "map_values"],
        ["mean"],
        ["mapped_table"],
        ["by_value"],
        ["per_window"],
        ["per_key_and_window"],
    ],
    ids=" ".join,
)
def test_these_operators_run_in_columns(operators: list[str]) -> None:
    assert columnar(built((TEXT, TEXT), operators, "json")) == ["KSTREAM-SOURCE-0000000000"]


@pytest.mark.parametrize(
    "operators",
    [
        ["filter", "map_values"],
        ["filter", "count", "map_values"],
        ["to", "count"],
        ["flat_map_values"],
        ["count_of_a_table"],
    ],
    ids=" ".join,
)
def test_these_operators_run_record_by_record(operators: list[str]) -> None:
    assert columnar(built((TEXT, TEXT), operators, "json")) == []


def test_a_new_key_is_computed_and_counted_in_columns() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by(lambda key, value: value).count().to_stream().to("out", value=INT)
    assert len(columnar(builder.build())) == 2


def test_a_processor_that_uses_the_store_of_a_count_keeps_it_from_columns() -> None:
    class Forwarder(ms.Processor):
        def process(self, record: ms.Record) -> None:
            self.context.forward(record)

    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=INT)
    builder.stream("other").process(Forwarder, stores=["counts"]).to("looked")
    assert columnar(builder.build()) == []


def test_a_function_is_called_once_per_record_in_order() -> None:
    calls: list[str] = []

    def called(value: str) -> str:
        calls.append(value)
        if value == "b":
            raise ValueError("b")
        return value

    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(called).to("out")
    rows = [(0, None, value.encode(), 0, ()) for value in "abcb"]
    assert columnar(builder.build())
    done = run(builder.build(), [(rows, None)], "skip")
    assert calls == ["a", "b", "c", "b"]
    assert done.outcomes[0].sends[0][1].values == [b"a", b"c"]


def test_records_of_several_partitions_are_counted_in_timestamp_order() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="c").to_stream().to("out", value=JSON)
    rows = [(n % 2, b"k", b"v", n, ()) for n in range(6)]
    done = run(builder.build(), [(rows, None)], "fail")
    (sent,) = [records for _, records in done.outcomes[0].sends]
    assert (sent.values, sent.timestamps) == ([b"1", b"2", b"3", b"4", b"5", b"6"], [0, 1, 2, 3, 4, 5])
