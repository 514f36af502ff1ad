"""The state of an operator is named by a path, which does not change when operators are inserted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.core.topology.nodes import Repartition

NEAR = ms.JoinWindows(1, 1, 1)
TUMBLING = ms.TumblingWindows(10, grace=0)

Stream = ms.KStream[Any, Any]


class Quiet(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None: ...


class Counting(Quiet):
    stores = (ms.stores.key_value("in-count", ms.serdes.string, ms.serdes.int64),)


class Days(ms.Windows):
    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        return [(0, 1)]


class Same(ms.ValueTransformer[Any, Any, Any]):
    def transform(self, key: Any, value: Any) -> Any:
        return value


def second(key: Any, value: Any) -> Any:
    return value


def left(left_value: Any, right_value: Any) -> Any:
    return left_value


def third(key: Any, value: Any, aggregate: Any) -> Any:
    return aggregate


def names_of_state(topology: ms.Topology) -> list[str]:
    """Return all names that matter after a restart: stores, internal topics, processors with schedules."""
    topics = [f"{node.topic_name}*" for node in topology.nodes.values() if isinstance(node, Repartition)]
    processors = [name for name, node in topology.nodes.items() if hasattr(node, "supplier")]
    return [*topology.stores, *topics, *processors]


def built(define: Callable[[ms.StreamsBuilder], object], **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder(**options)
    define(builder)
    return builder.build()


PATHS: dict[str, tuple[Callable[[ms.StreamsBuilder], object], list[str]]] = {
    "count": (lambda b: b.stream("in").group_by_key().count(), ["in-count"]),
    "sum": (lambda b: b.stream("in", value=ms.serdes.int64).group_by_key().sum(), ["in-sum"]),
    "windows": (lambda b: b.stream("in").group_by_key().windowed_by(TUMBLING).count(), ["in-windowed-count"]),
    "windows of the user's own": (
        lambda b: (
            b.stream("in").group_by_key().windowed_by(Days(1, grace=0), emit=ms.on_window_close).count()
        ),
        ["in-windowed-count"],
    ),
    "sliding windows": (
        lambda b: b.stream("in").group_by_key().windowed_by(ms.SlidingWindows(1, grace=0)).reduce(left),
        ["in-sliding-reduce"],
    ),
    "sessions": (
        lambda b: (
            b.stream("in")
            .group_by_key()
            .windowed_by(ms.SessionWindows(1, grace=0), emit=ms.on_window_close)
            .count()
        ),
        ["in-session-count", "in-session-count-open"],
    ),
    "cogroup": (
        lambda b: (
            b.stream("in")
            .group_by_key()
            .cogroup(third)
            .cogroup(b.stream("other").group_by(second), third)
            .aggregate(str)
        ),
        ["in-cogroup", "in-cogroup-1*"],
    ),
    "late records of a cogroup": (
        lambda b: (
            b.stream("in")
            .group_by_key()
            .cogroup(third)
            .cogroup(b.stream("other").group_by(second), third)
            .windowed_by(Days(1, grace=0), late=lambda late: late.to_table() and None)
            .aggregate(str)
        ),
        ["in-windowed-cogroup", "in-table", "other-rekeyed-table", "in-windowed-cogroup-1*"],
    ),
    "re-keyed": (
        lambda b: b.stream("in").group_by(second).count(),
        ["in-rekeyed-count", "in-rekeyed-count*"],
    ),
    "re-keyed and spread": (
        lambda b: b.stream("in").select_key(second).repartition().group_by_key().count(),
        ["in-rekeyed-count", "in-rekeyed*"],
    ),
    "an aggregation of an aggregation": (
        lambda b: b.stream("in").group_by_key().count().group_by(lambda k, v: (v, k)).count(),
        ["in-count", "in-count-rekeyed-count", "in-count-rekeyed-count*"],
    ),
    "table": (lambda b: b.table("in"), ["in-table"]),
    "to_table": (lambda b: b.stream("in").to_table(), ["in-table"]),
    "global table": (
        lambda b: b.stream("in").join(b.global_table("t"), second, left).group_by_key().count(),
        ["t-table", "in-count"],
    ),
    "suppress": (
        lambda b: (
            b.stream("in")
            .group_by_key()
            .windowed_by(TUMBLING)
            .count()
            .suppress(ms.Suppressed.until_time_limit(1))
        ),
        [
            "in-windowed-count",
            "in-windowed-count-suppress",
            "in-windowed-count-suppress-places",
        ],
    ),
    "transform_values": (
        lambda b: b.table("in").transform_values(Same),
        ["in-table", "in-transformed", "in-transform"],
    ),
    "processors": (
        lambda b: b.stream("in").process_values(Quiet).process(Quiet).process_values(Quiet),
        ["in-process-values", "in-process", "in-rekeyed-process-values"],
    ),
    "join of streams": (
        lambda b: b.stream("in").outer_join(b.stream("other"), left, windows=NEAR).group_by_key().count(),
        [
            "in-other-join-left",
            "in-other-join-right",
            "in-other-join-unmatched",
            "in-other-join-count",
        ],
    ),
    "late records of a join": (
        lambda b: (
            b.stream("in")
            .select_key(second)
            .join(b.stream("other"), left, windows=NEAR, store="pairs", late=lambda s: s.to_table() and None)
        ),
        ["pairs-left", "pairs-right", "in-rekeyed-table", "pairs-left*"],
    ),
    "join with a table": (
        lambda b: b.stream("in").select_key(second).join(b.table("t"), left).group_by_key().count(),
        ["t-table", "in-rekeyed-count", "in-rekeyed-t-join*"],
    ),
    "join that waits": (
        lambda b: b.stream("in").join(
            b.table("t", store=ms.stores.options("versions", history_retention=9)), left, grace=9
        ),
        ["versions", "in-versions-join-buffer"],
    ),
    "join of tables": (
        lambda b: b.table("in").join(b.table("t"), left).group_by(lambda k, v: (v, v)).count(),
        ["in-table", "t-table", "in-t-join-rekeyed-count", "in-t-join-rekeyed-count*"],
    ),
    "foreign key": (
        lambda b: b.table("in").join(b.table("t"), left, on=str),
        [
            "in-table",
            "t-table",
            "in-t-join-subscriptions",
            "in-t-join-store",
            "in-t-join-subscription-registration*",
            "in-t-join-subscription-response*",
        ],
    ),
    "topics by pattern": (
        lambda b: b.stream(re.compile(r"shop\.orders-\d+")).group_by_key().count(),
        ["shop-orders-pattern-count"],
    ),
    "all topics": (lambda b: b.stream(re.compile(".*")).group_by_key().count(), ["pattern-count"]),
    "several topics": (lambda b: b.stream(["in", "more"]).group_by_key().count(), ["in-count"]),
    "merged streams": (
        lambda b: b.stream("in").merge(b.stream("other")).group_by_key().count(),
        ["in-count"],
    ),
    "branches": (
        lambda b: [
            branch.group_by_key().count()
            for branch in b.stream("in").split().branch(second, name="big").branch(second).default().values()
        ],
        ["in-big-count", "in-count", "in-count-2"],
    ),
    "branches that go on where they are made": (
        lambda b: (
            b.stream("in")
            .split()
            .branch(second, name="big", then=lambda s: s.group_by_key().count() and None)
            .default(then=lambda s: s.group_by_key().count() and None)
        ),
        ["in-big-count", "in-count"],
    ),
    "branches of a split with a name": (
        lambda b: [
            branch.group_by_key().count()
            for branch in b.stream("in").split(name="to-").branch(second, name="big").default().values()
        ],
        ["to-big-count", "to-0-count"],
    ),
    "a name begins a path": (
        lambda b: b.stream("in").filter(second, name="big").map_values(str).group_by_key().count(),
        ["big-count"],
    ),
    "the name of a source begins a path": (
        lambda b: b.stream("in", name="orders").group_by(second).count(),
        ["orders-rekeyed-count", "orders-rekeyed-count*"],
    ),
    "the name of a grouping begins a path": (
        lambda b: b.stream("in").group_by(second, name="by").count(),
        ["by-count", "by*"],
    ),
    "the name of a store begins a path": (
        lambda b: b.table("in", store="orders").group_by(lambda k, v: (v, v)).count(),
        ["orders", "orders-rekeyed-count", "orders-rekeyed-count*"],
    ),
    "names of aggregations": (
        lambda b: (
            b.stream("in")
            .group_by_key()
            .count(name="counts")
            .to_stream()
            .group_by_key()
            .windowed_by(TUMBLING)
            .reduce(left, name="last")
        ),
        ["counts-count", "last-windowed-reduce"],
    ),
}


@pytest.mark.parametrize(("define", "expected"), PATHS.values(), ids=PATHS.keys())
def test_state_is_named_by_its_path(
    define: Callable[[ms.StreamsBuilder], object], expected: list[str]
) -> None:
    assert names_of_state(built(define)) == expected


def test_repeated_paths_are_numbered_in_program_order() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    for _ in range(3):
        stream.group_by_key().count()
    stream.group_by_key().reduce(left)
    assert list(builder.build().stores) == ["in-count", "in-count-2", "in-count-3", "in-reduce"]


UNRELATED: list[Callable[[Stream], Stream]] = [
    lambda s: s.filter(second),
    lambda s: s.filter_not(second),
    lambda s: s.map_values(str),
    lambda s: s.flat_map_values(list),
    lambda s: s.peek(second),
    lambda s: s.process_values(Quiet),
    lambda s: s.branch(second)[0],
    lambda s: s.split().branch(second).default()["0"],
]
"""Operators that change neither keys nor the names of the state of other operators."""


def program(insert: Callable[[str, Stream], Stream]) -> ms.Topology:
    """Build a program with points at which operators may be inserted."""
    builder = ms.StreamsBuilder()
    orders = insert("orders", builder.stream("orders"))
    returns = insert("returns", builder.stream("returns"))
    per_day = insert("rekeyed", orders.select_key(second)).group_by_key().windowed_by(TUMBLING).count()
    per_day.suppress(ms.Suppressed.until_window_closes()).to_stream().to("out")
    insert("grouped", orders).group_by_key().count()
    insert("joined", orders.left_join(returns, left, windows=NEAR)).select_key(second).to_table()
    insert("to be mapped", returns).map(lambda k, v: (k, v)).join(builder.table("t"), left).process(Quiet)
    return builder.build()


INSERTION_POINTS = ["orders", "returns", "rekeyed", "grouped", "joined", "to be mapped"]
STATE = {
    name
    for name in names_of_state(program(lambda _, stream: stream))
    if not name.endswith(("process", "process-values"))
}


@given(
    st.dictionaries(
        st.sampled_from(INSERTION_POINTS), st.lists(st.integers(0, len(UNRELATED) - 1), max_size=3)
    )
)
def test_inserted_operators_do_not_change_names_of_state(inserted: dict[str, list[int]]) -> None:
    def insert(point: str, stream: Stream) -> Stream:
        for number in inserted.get(point, ()):
            stream = UNRELATED[number](stream)
        return stream

    names = names_of_state(program(insert))
    assert {name for name in names if "process" not in name} == STATE
    assert "returns-rekeyed-process" not in STATE
    assert "returns-rekeyed-process" in names


def test_inserted_operators_change_numbered_names() -> None:
    def define(builder: ms.StreamsBuilder, *, edited: bool) -> None:
        stream = builder.stream("in")
        (stream.filter(second) if edited else stream).group_by_key().count()

    before, after = (
        list(built(lambda b, edited=edited: define(b, edited=edited), names="numbered").stores)
        for edited in (False, True)
    )
    assert before == ["KSTREAM-AGGREGATE-STATE-STORE-0000000001"]
    assert after == ["KSTREAM-AGGREGATE-STATE-STORE-0000000002"]


def test_the_error_for_a_path_that_is_too_long_says_how_to_shorten_it() -> None:
    builder = ms.StreamsBuilder()
    table: ms.KTable[Any, Any] = builder.stream("in").group_by_key().count()
    for _ in range(13):
        table = table.group_by(lambda k, v: (v, v)).count()
    with pytest.raises(TopologyError, match=r"the path 'in-count-rekeyed-.* Set name="):
        table.group_by(lambda k, v: (v, v)).count()
    assert table.group_by(lambda k, v: (v, v), name="by").count().store_name == "by-count"


def test_an_unknown_kind_of_names_is_rejected() -> None:
    with pytest.raises(TopologyError, match="names must be 'stable' or 'numbered', not 'short'"):
        ms.StreamsBuilder(names="short")  # type: ignore[arg-type]


class TestClashes:
    MESSAGE = "'in-count' would be the name of two things: of one because you set it"

    def test_with_an_earlier_explicit_name_are_rejected(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("other").group_by_key().count(store="in-count")
        with pytest.raises(TopologyError, match=self.MESSAGE):
            builder.stream("in").group_by_key().count()

    def test_with_a_later_explicit_name_are_rejected(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().count()
        with pytest.raises(TopologyError, match=self.MESSAGE):
            builder.stream("other").group_by_key().count(store="in-count")

    def test_with_a_store_of_a_join_are_rejected(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("third").group_by_key().count(store="in-other-join-left")
        with pytest.raises(TopologyError, match="'in-other-join-left' would be the name of two things"):
            builder.stream("in").join(builder.stream("other"), left, windows=NEAR)

    def test_with_an_added_store_are_rejected(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().count()
        with pytest.raises(TopologyError, match=self.MESSAGE):
            builder.add_state_store(ms.stores.key_value("in-count", ms.serdes.string, ms.serdes.int64))

    @pytest.mark.parametrize("operator", ["process", "process_values"])
    def test_with_a_store_that_a_later_processor_supplies_are_rejected(self, operator: str) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().count()
        with pytest.raises(TopologyError, match=self.MESSAGE):
            getattr(builder.stream("other"), operator)(Counting)

    def test_with_a_store_that_an_earlier_processor_supplied_are_rejected(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("other").process(Counting)
        with pytest.raises(TopologyError, match=self.MESSAGE):
            builder.stream("in").group_by_key().count()


class TestNamesOfNodes:
    """The parameter `name` corresponds to `Named` in Kafka Streams."""

    def test_can_be_given_to_aggregations(self) -> None:
        def define(b: ms.StreamsBuilder) -> None:
            group = b.stream("in", value=ms.serdes.int64).group_by_key()
            for operator in ("count", "sum", "min", "max"):
                getattr(group, operator)(name=f"a-{operator}")
            group.reduce(left, name="a-reduce")
            group.aggregate(str, third, name="an-aggregate")
            for windows in (TUMBLING, ms.SlidingWindows(1, grace=0)):
                windowed = group.windowed_by(windows)  # type: ignore[call-overload]
                kind = type(windows).__name__
                windowed.count(name=f"{kind}-count")
                windowed.reduce(left, name=f"{kind}-reduce")
                windowed.aggregate(str, third, name=f"{kind}-aggregate")
            sessions = group.windowed_by(ms.SessionWindows(1, grace=0))
            sessions.count(name="sessions-count")
            sessions.reduce(left, name="sessions-reduce")
            sessions.aggregate(str, third, third, name="sessions-aggregate")
            group.cogroup(third).aggregate(str, name="cogroup")
            group.cogroup(third).windowed_by(TUMBLING).aggregate(str, name="windowed-cogroup")
            sessions_cogroup = group.cogroup(third).windowed_by(ms.SessionWindows(1, grace=0))
            sessions_cogroup.aggregate(str, third, name="sessions-cogroup")

        given_names = {
            *("a-count", "a-sum", "a-min", "a-max", "a-reduce", "an-aggregate"),
            *(f"TumblingWindows-{operator}" for operator in ("count", "reduce", "aggregate")),
            *(f"SlidingWindows-{operator}" for operator in ("count", "reduce", "aggregate")),
            *(f"sessions-{operator}" for operator in ("count", "reduce", "aggregate")),
            *(f"{name}-cogroup-merge" for name in ("cogroup", "windowed-cogroup", "sessions-cogroup")),
            *("cogroup-cogroup-agg-0", "windowed-cogroup-cogroup-agg-0", "sessions-cogroup-cogroup-agg-0"),
        }
        assert given_names <= set(built(define).nodes)

    def test_can_be_given_to_tables(self) -> None:
        def define(b: ms.StreamsBuilder) -> None:
            table = b.table("in", name="read")
            rows = b.global_table("everywhere", name="filled")
            b.stream("other").to_table(name="rows")
            swapped = table.group_by(lambda k, v: (v, k), name="swapped")
            swapped.count(name="counted")
            swapped.reduce(left, left, name="reduced")
            swapped.aggregate(str, third, third, name="aggregated")
            table.to_stream(name="changes").join(rows, second, left, name="rich").split(name="to-").default()

        names = set(built(define).nodes)
        assert {"read-source", "read", "filled-source", "filled", "rows"} <= names
        assert {"swapped", "counted", "reduced", "aggregated", "changes", "rich", "to-", "to-0"} <= names

    def test_apply_to_both_sides_of_a_join(self) -> None:
        def define(b: ms.StreamsBuilder) -> None:
            b.stream("in").left_join(b.stream("other"), left, windows=NEAR, name="pairs")
            b.table("t").join(b.table("u"), left, name="rows")

        names = set(built(define).nodes)
        assert {"pairs-this-join", "pairs-outer-other-join", "pairs"} <= names
        assert {"rows-join-this", "rows-join-other", "rows"} <= names
