"""The topologies of `DescribeNames.java`, built with Millstream: one function per section of `names.txt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import millstream as ms

NEAR = ms.JoinWindows(10, 10, 10)
TUMBLING = ms.TumblingWindows(10, grace=0)
SLIDING = ms.SlidingWindows(10, grace=0)
SESSIONS = ms.SessionWindows(10, grace=0)

Define = Callable[[ms.StreamsBuilder], object]
Stream = ms.KStream[Any, Any]


class Nothing(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None: ...


class Unchanged(ms.ValueTransformer[Any, Any, Any]):
    def transform(self, key: Any, value: Any) -> Any:
        return value


def read(builder: ms.StreamsBuilder) -> Stream:
    return builder.stream("in")


def rekeyed(builder: ms.StreamsBuilder, topic: str = "in") -> Stream:
    return builder.stream(topic).select_key(second)


def grouped(builder: ms.StreamsBuilder) -> ms.KGroupedStream[Any, Any]:
    return read(builder).group_by_key()


def regrouped(builder: ms.StreamsBuilder) -> ms.KGroupedStream[Any, Any]:
    return read(builder).group_by(second)


def swapped(builder: ms.StreamsBuilder, name: str | None = None) -> ms.KGroupedTable[Any, Any]:
    return builder.table("in").group_by(lambda k, v: (v, k), name=name)


def second(key: Any, value: Any) -> Any:
    return value


def left(value: Any, _: Any) -> Any:
    return value


def third(key: Any, value: Any, aggregate: Any) -> Any:
    return aggregate


def always(key: Any, value: Any) -> bool:
    return True


def out(table: ms.KTable[Any, Any]) -> None:
    table.to_stream().to("out")


def stateless(b: ms.StreamsBuilder) -> None:
    stream = read(b).filter(always).filter_not(always).map_values(str).flat_map_values(list)
    stream = stream.map(lambda k, v: (k, v)).flat_map(lambda k, v: [(k, v)]).select_key(second)
    stream.peek(always).to("out")


def foreach_and_print(b: ms.StreamsBuilder) -> None:
    read(b).foreach(always)
    b.stream("other").print()


def split(b: ms.StreamsBuilder) -> None:
    branches = read(b).split().branch(always).branch(always, name="named").default()
    for number, name in enumerate(("named", "0", "1")):
        branches[name].to(f"out-{number}")


def global_table(b: ms.StreamsBuilder) -> None:
    table = b.global_table("table")
    read(b).join(table, second, left).left_join(table, second, left).to("out")


def two_aggregations(b: ms.StreamsBuilder) -> None:
    group = regrouped(b)
    group.count()
    group.reduce(left)


def stream_table_join_grace(b: ms.StreamsBuilder) -> None:
    stream = read(b)
    table = b.table("table", store=ms.stores.options("versions", history_retention=10))
    stream.join(table, left, grace=10).to("out")


def joined_twice(b: ms.StreamsBuilder) -> None:
    stream, other = rekeyed(b), b.stream("other")
    stream.join(other, left, windows=NEAR).to("out")
    stream.join(other, left, windows=NEAR).to("again")


def joined_twice_with_tables(b: ms.StreamsBuilder) -> None:
    stream, table = rekeyed(b), b.table("table")
    stream.join(table, left).to("out")
    stream.join(table, left).to("again")


def joined_with_itself(b: ms.StreamsBuilder) -> None:
    stream = rekeyed(b)
    stream.join(stream, left, windows=NEAR).to("out")


def joined_and_grouped(b: ms.StreamsBuilder) -> None:
    stream = rekeyed(b)
    stream.join(b.stream("other"), left, windows=NEAR).to("out")
    stream.group_by_key().count()


def then(b: ms.StreamsBuilder) -> None:
    split = read(b).split().branch(always, then=lambda s: s.group_by_key().count() and None)
    split = split.branch(always, then=lambda s: s.map_values(str))
    split.default(then=lambda s: s.group_by(second).count() and None)
    b.stream("other").filter(always).to("out")


def same_topic_twice(b: ms.StreamsBuilder) -> None:
    read(b).filter(always).to("out")
    read(b).map_values(str).to("again")


def named_operators(b: ms.StreamsBuilder) -> None:
    stream = (
        read(b).filter(always, name="some").map_values(str, name="values").select_key(second, name="keys")
    )
    stream.peek(always, name="seen").to("out", name="sent")
    read(b).filter(always).to("again")


def named_table_operators(b: ms.StreamsBuilder) -> None:
    table = (
        b.table("in", name="read", store="rows").filter(always, name="some").map_values(str, name="values")
    )
    table.to_stream(name="rows-as-stream").to("out")
    b.stream("other").to("again")


def named_count_rekeyed(b: ms.StreamsBuilder) -> None:
    out(regrouped(b).count(name="mine"))
    b.stream("other").to("again")


def named_ends(b: ms.StreamsBuilder) -> None:
    stream = read(b)
    stream.merge(b.stream("other"), name="both").foreach(always, name="each")
    stream.to_table(name="rows")
    stream.flat_map(lambda k, v: [(k, v)], name="flat").to("out")


def cogroup_one_rekeyed(b: ms.StreamsBuilder, **names: Any) -> None:
    first = grouped(b).cogroup(third)
    group = b.stream("other").group_by(second, name="by" if "name" in names else None)
    out(first.cogroup(group, third).aggregate(str, **names))


def global_store(b: ms.StreamsBuilder, name: str | None = None) -> None:
    kept = ms.stores.key_value("kept", ms.serdes.string, ms.serdes.string)
    b.add_global_store(kept, "table", Nothing, name=name)
    read(b).to("out")


TOPOLOGIES: dict[str, Define] = {
    "stateless": stateless,
    "named_stateless": lambda b: (
        b.stream("in", name="read").filter(always, name="some").map_values(str).to("out")
    ),
    "foreach_and_print": foreach_and_print,
    "merge": lambda b: read(b).merge(b.stream("other")).to("out"),
    "split": split,
    "named_split": lambda b: read(b).split(name="to-").branch(always).branch(always, name="named").default(),
    "process": lambda b: read(b).process(Nothing).process_values(Nothing).to("out"),
    "repartition": lambda b: read(b).repartition().to("out"),
    "named_repartition": lambda b: read(b).repartition(name="mine").to("out"),
    "to_table": lambda b: out(read(b).to_table()),
    "to_table_rekeyed": lambda b: out(rekeyed(b).to_table()),
    "to_table_store": lambda b: out(rekeyed(b).to_table(store="rows")),
    "named_to_table": lambda b: out(read(b).to_table(name="rows")),
    "table": lambda b: out(b.table("in")),
    "table_store": lambda b: out(b.table("in", store="rows")),
    "named_table": lambda b: out(b.table("in", name="read", store="rows")),
    "global_table": global_table,
    "count": lambda b: out(grouped(b).count()),
    "count_store": lambda b: out(grouped(b).count(store="counts")),
    "named_count": lambda b: out(grouped(b).count(name="mine")),
    "count_rekeyed": lambda b: out(regrouped(b).count()),
    "count_rekeyed_store": lambda b: out(regrouped(b).count(store="counts")),
    "count_named_group": lambda b: out(read(b).group_by(second, name="by").count()),
    "reduce": lambda b: out(grouped(b).reduce(left)),
    "reduce_rekeyed": lambda b: out(regrouped(b).reduce(left)),
    "aggregate": lambda b: out(grouped(b).aggregate(str, third)),
    "aggregate_rekeyed": lambda b: out(rekeyed(b).group_by_key().aggregate(str, third)),
    "two_aggregations": two_aggregations,
    "windowed_count": lambda b: out(grouped(b).windowed_by(TUMBLING).count()),
    "windowed_count_store": lambda b: out(grouped(b).windowed_by(TUMBLING).count(store="counts")),
    "windowed_reduce": lambda b: out(grouped(b).windowed_by(TUMBLING).reduce(left)),
    "windowed_aggregate": lambda b: out(grouped(b).windowed_by(TUMBLING).aggregate(str, third)),
    "windowed_rekeyed": lambda b: (
        regrouped(b)
        .windowed_by(TUMBLING, emit=ms.on_window_close)
        .count()
        .to_stream(lambda k, v: k.key)
        .to("out")
    ),
    "sliding_count": lambda b: out(grouped(b).windowed_by(SLIDING).count()),
    "sliding_reduce": lambda b: out(grouped(b).windowed_by(SLIDING).reduce(left)),
    "session_count": lambda b: out(grouped(b).windowed_by(SESSIONS).count()),
    "session_reduce": lambda b: out(grouped(b).windowed_by(SESSIONS).reduce(left)),
    "session_aggregate": lambda b: out(grouped(b).windowed_by(SESSIONS).aggregate(str, third, third)),
    "cogroup": lambda b: out(
        grouped(b).cogroup(third).cogroup(b.stream("other").group_by_key(), third).aggregate(str)
    ),
    "cogroup_rekeyed": lambda b: out(
        regrouped(b)
        .cogroup(third)
        .cogroup(b.stream("other").group_by(second, name="by"), third)
        .aggregate(str)
    ),
    "cogroup_windowed": lambda b: out(
        grouped(b)
        .cogroup(third)
        .cogroup(b.stream("other").group_by_key(), third)
        .windowed_by(TUMBLING)
        .aggregate(str)
    ),
    "stream_table_join": lambda b: (
        read(b).join(b.table("table"), left).left_join(b.table("other"), left).to("out")
    ),
    "stream_table_join_rekeyed": lambda b: rekeyed(b).join(b.table("table"), left).to("out"),
    "stream_table_join_named": lambda b: rekeyed(b).join(b.table("table"), left, name="rich").to("out"),
    "stream_table_join_grace": stream_table_join_grace,
    "stream_join": lambda b: read(b).join(b.stream("other"), left, windows=NEAR).to("out"),
    "stream_left_join": lambda b: read(b).left_join(b.stream("other"), left, windows=NEAR).to("out"),
    "stream_outer_join": lambda b: read(b).outer_join(b.stream("other"), left, windows=NEAR).to("out"),
    "stream_join_rekeyed": lambda b: rekeyed(b).join(rekeyed(b, "other"), left, windows=NEAR).to("out"),
    "stream_outer_join_rekeyed": lambda b: (
        rekeyed(b).outer_join(rekeyed(b, "other"), left, windows=NEAR).to("out")
    ),
    "stream_join_named": lambda b: (
        rekeyed(b).join(b.stream("other"), left, windows=NEAR, store="pairs").to("out")
    ),
    "stream_outer_join_named": lambda b: (
        read(b).outer_join(b.stream("other"), left, windows=NEAR, store="pairs", name="node").to("out")
    ),
    "table_filter_and_map": lambda b: out(
        b.table("in").filter(always).map_values(str).filter_not(always, store="rows")
    ),
    "table_join": lambda b: out(b.table("in").join(b.table("other"), left)),
    "table_left_join_named": lambda b: out(b.table("in").left_join(b.table("other"), left, name="rich")),
    "table_outer_join_store": lambda b: out(b.table("in").outer_join(b.table("other"), left, store="rows")),
    "table_group": lambda b: out(swapped(b).count()),
    "table_group_store": lambda b: out(swapped(b).count(store="counts")),
    "table_reduce": lambda b: out(swapped(b).reduce(left, left)),
    "table_aggregate": lambda b: out(swapped(b, "by").aggregate(str, third, third)),
    "transform_values": lambda b: out(b.table("in").transform_values(Unchanged)),
    "transform_values_store": lambda b: out(b.table("in").transform_values(Unchanged, store="rows")),
    "suppress": lambda b: out(
        grouped(b).windowed_by(TUMBLING).count().suppress(ms.Suppressed.until_window_closes())
    ),
    "named_suppress": lambda b: out(
        b.table("in").suppress(ms.Suppressed.until_time_limit(10, max_records=5), name="held")
    ),
    "foreign_key_join": lambda b: out(b.table("in").join(b.table("other"), left, on=str)),
    "foreign_key_join_store": lambda b: out(
        b.table("in").left_join(b.table("other"), left, on=str, store="rows")
    ),
    "foreign_key_join_named": lambda b: out(b.table("in").join(b.table("other"), left, on=str, name="rich")),
    "joined_twice": joined_twice,
    "joined_twice_with_tables": joined_twice_with_tables,
    "joined_with_itself": joined_with_itself,
    "joined_and_grouped": joined_and_grouped,
    "then": then,
    "same_topic_twice": same_topic_twice,
    "named_operators": named_operators,
    "named_table_operators": named_table_operators,
    "named_count_rekeyed": named_count_rekeyed,
    "named_ends": named_ends,
    "cogroup_one_rekeyed": cogroup_one_rekeyed,
    "cogroup_one_rekeyed_store": lambda b: cogroup_one_rekeyed(b, store="kept"),
    "cogroup_named": lambda b: cogroup_one_rekeyed(b, store="kept", name="mine"),
    "global_store": global_store,
    "named_global_store": lambda b: global_store(b, "fill"),
}
