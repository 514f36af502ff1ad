"""The topologies that Kafka Streams 4.3 was recorded with, built with Millstream.

There is one builder function per scenario. `SCENARIOS` maps its name, with which the names of its files in `data/` begin, to
the builder and to the output topics in the order in which the recorder read them. Null values are written as in the recorded
Java topologies: `text(None)` is the string `null`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import millstream as ms

INT64 = ms.serdes.int64
STRING = ms.serdes.string


@dataclass(frozen=True)
class Scenario:
    """The builder of a recorded topology, and its output topics."""

    build: Callable[[], ms.Topology]
    topics: tuple[str, ...]


SCENARIOS: dict[str, Scenario] = {}


def scenario(*topics: str) -> Callable[[Callable[[], ms.Topology]], Callable[[], ms.Topology]]:
    """Register a builder under its own name, with its output topics in the order of reading."""

    def register(build: Callable[[], ms.Topology]) -> Callable[[], ms.Topology]:
        SCENARIOS[build.__name__] = Scenario(build, topics)
        return build

    return register


def dsl(define: Callable[[ms.StreamsBuilder], None]) -> Callable[[], ms.Topology]:
    """Turn a function that defines a topology with a StreamsBuilder into one that builds it. Serdes are strings by default."""

    def build() -> ms.Topology:
        builder = ms.StreamsBuilder(
            default_key_serde=STRING, default_value_serde=STRING, names="numbered", null_keys="silent"
        )
        define(builder)
        return builder.build()

    build.__name__ = define.__name__
    return build


# Functions that several scenarios use


def text(value: str | None) -> str:
    return "null" if value is None else value


def num(value: str) -> int:
    return int(value[1:])


def first(value: str) -> str:
    return value[0]


def first_or_none(value: str | None) -> str | None:
    return None if value is None else first(value)


def rest(value: str) -> str:
    return value[1:]


def words(value: str | None) -> list[str]:
    return [] if value is None else value.split(" ")


def is_even(_key: str | None, value: str) -> bool:
    return num(value) % 2 == 0


Step = Callable[[ms.ProcessorContext, ms.Record], None]


class Each(ms.Processor):
    """Calls a function with the context and the record for each record."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def process(self, record: ms.Record) -> None:
        self.step(self.context, record)


def each(step: Step) -> Callable[[], Each]:
    """Return a supplier of processors that call `step`."""
    return lambda: Each(step)


def forward_value(value: Callable[[ms.ProcessorContext, ms.Record], str]) -> Callable[[], Each]:
    """Return a supplier of processors that forward each record with a new value."""
    return each(lambda context, record: context.forward(record.with_value(value(context, record))))


def string_store(name: str) -> ms.stores.StoreSpec:
    return ms.stores.key_value(name, STRING, STRING)


def versioned_table(builder: ms.StreamsBuilder, topic: str, store: str, history: int) -> ms.KTable:
    return builder.table(topic, store=ms.stores.options(store, history_retention=history))


class Counting(ms.Processor):
    """Counts from 0. The number is in a store, because a processor may not outlive a micro-batch."""

    @staticmethod
    def store() -> ms.stores.StoreSpec:
        return ms.stores.key_value("number", STRING, INT64)

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        self.numbers = context.state_store("number")

    def next_number(self) -> int:
        number = self.numbers.get("next") or 0
        self.numbers.put("next", number + 1)
        return number


# Stateless


@scenario("out-a", "out-even", "out-rest", "out", "out-b")
@dsl
def map_filter_branch(builder: ms.StreamsBuilder) -> None:
    mapped = builder.stream("in").map(
        lambda k, v: ("NONE" if k is None else k.upper(), "v7" if v is None else v),
    )
    filtered = mapped.filter(lambda _, v: num(v) % 5 != 0).filter_not(lambda _, v: num(v) % 7 == 3)
    branches = (
        filtered.split(name="split-")
        .branch(lambda k, _: k == "A", name="a")
        .branch(is_even, name="even")
        .default(name="rest")
    )
    unmapped = branches["split-rest"]
    a = branches["split-a"].map_values(lambda v: f"a:{v}")
    even = branches["split-even"].map_values(lambda v: f"even:{v}")
    others = unmapped.map_values(lambda v: f"rest:{v}")
    a.to("out-a")
    even.to("out-even")
    others.to("out-rest")
    a.merge(even).merge(others).to("out")
    unmapped.split(name="b-").branch(lambda k, _: k == "B", name="only").no_default()["b-only"].to("out-b")


@scenario("out", "out-flat", "out-mapvalues")
@dsl
def flat_map_values(builder: ms.StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.flat_map_values(words).to("out")
    stream.flat_map(lambda k, v: [("null", k)] if v is None else [(w, k) for w in words(v)]).to("out-flat")
    stream.map_values(lambda k, v: f"{text(k)}={text(v)}", with_key=True).to("out-mapvalues")


@scenario("oracle-rp-repartition", "out")
@dsl
def select_key_through_repartition(builder: ms.StreamsBuilder) -> None:
    rekeyed = builder.stream("in").select_key(lambda _, v: first_or_none(v)).repartition(name="rp")
    rekeyed.map_values(lambda k, v: f"{text(k)}:{text(v)}", with_key=True).to("out")


@scenario("out")
@dsl
def merge_two(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").merge(builder.stream("right")).to("out")


@scenario("out-a0", "out-a1", "out-b0", "out-b1", "out-none0", "out-none1")
@dsl
def topic_name_extractor(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").to(
        lambda key, _, context: f"out-{'none' if key is None else key}{context.timestamp % 2}",
    )


@scenario("oracle-words-repartition", "out")
@dsl
def word_count(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").flat_map_values(words).group_by(lambda _, word: word, name="words")
    grouped.count(store="counts").to_stream().to("out", value=INT64)


# Aggregations


@scenario("out")
@dsl
def count_by_key(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=INT64)


@scenario("out")
@dsl
def reduce_concat(builder: ms.StreamsBuilder) -> None:
    reduced = (
        builder.stream("in")
        .group_by_key()
        .reduce(lambda old, new: None if new == "x" else f"{old},{new}", store="reduced")
    )
    reduced.to_stream().to("out")


@scenario("out")
@dsl
def aggregate_sum_long(builder: ms.StreamsBuilder) -> None:
    sums = (
        builder.stream("in")
        .group_by_key()
        .aggregate(
            lambda: 0,
            lambda _, v, total: None if v == "r" else total + int(v),
            store="sums",
            value=INT64,
        )
    )
    sums.to_stream().to("out", value=INT64)


@scenario("out")
@dsl
def count_group_by_value(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by(lambda _, v: first_or_none(v))
    grouped.count(store="counts").to_stream().to("out", value=INT64)


@scenario("out")
@dsl
def ktable_count_group_by(builder: ms.StreamsBuilder) -> None:
    table = builder.table("in", store="t")
    grouped = table.group_by(lambda _, v: (None if v.startswith("-") else first(v), v))
    grouped.count(store="counts").to_stream().to("out", value=INT64)


@scenario("out")
@dsl
def ktable_count_group_by_versioned(builder: ms.StreamsBuilder) -> None:
    grouped = versioned_table(builder, "in", "vt", 1500).group_by(lambda _, v: (first(v), v))
    grouped.count(store="counts").to_stream().to("out", value=INT64)


@scenario("out")
@dsl
def ktable_reduce_group_by(builder: ms.StreamsBuilder) -> None:
    reduced = (
        builder.table("in", store="t")
        .group_by(lambda _, v: (first(v), rest(v)))
        .reduce(lambda old, v: f"{old}+{v}", lambda old, v: f"{old}-{v}", store="reduced")
    )
    reduced.to_stream().to("out")


@scenario("out")
@dsl
def ktable_aggregate_group_by(builder: ms.StreamsBuilder) -> None:
    sums = (
        builder.table("in", store="t")
        .group_by(lambda _, v: (first(v), rest(v)))
        .aggregate(
            lambda: 0,
            lambda _, v, total: total + int(v),
            lambda _, v, total: total - int(v),
            store="sums",
            value=INT64,
        )
    )
    sums.to_stream().to("out", value=INT64)


# Windows

TUMBLING = ms.TumblingWindows(1000, grace=500)
HOPPING = ms.HoppingWindows(1000, advance=300, grace=400)
SLIDING = ms.SlidingWindows(700, grace=500)
SESSION = ms.SessionWindows(400, grace=300)
KEPT_A_MINUTE = ms.stores.options("w", retention=60_000)


def concatenated(so_far: str, value: str | None) -> str:
    return f"{so_far},{text(value)}"


def appended(_key: str, value: str | None, so_far: str) -> str:
    return so_far + text(value)


def empty() -> str:
    return ""


@scenario("out")
@dsl
def tumbling_count(builder: ms.StreamsBuilder) -> None:
    counts = builder.stream("in").group_by_key().windowed_by(TUMBLING).count(store="w")
    counts.to_stream().to("out")


@scenario("out")
@dsl
def tumbling_count_no_grace(builder: ms.StreamsBuilder) -> None:
    windows = ms.TumblingWindows(1000, grace=0)
    builder.stream("in").group_by_key().windowed_by(windows).count(store="w").to_stream().to("out")


@scenario("out")
@dsl
def hopping_count(builder: ms.StreamsBuilder) -> None:
    counts = builder.stream("in").group_by_key().windowed_by(HOPPING).count(store="w")
    counts.to_stream().to("out")


@scenario("out")
@dsl
def tumbling_count_rekeyed(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by(lambda _, v: first_or_none(v))
    grouped.windowed_by(TUMBLING).count(store="w").to_stream().to("out")


@scenario("out")
@dsl
def tumbling_reduce_concat(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by_key().windowed_by(TUMBLING)
    grouped.reduce(concatenated, store="w").to_stream().to("out")


@scenario("out")
@dsl
def hopping_aggregate_concat(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by_key().windowed_by(HOPPING)
    grouped.aggregate(empty, appended, store="w").to_stream().to("out")


@scenario("out")
@dsl
def sliding_count(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").group_by_key().windowed_by(SLIDING).count(store="w").to_stream().to("out")


@scenario("out")
@dsl
def sliding_aggregate_concat(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by_key().windowed_by(SLIDING)
    grouped.aggregate(empty, appended, store="w").to_stream().to("out")


@scenario("out")
@dsl
def sliding_emit_on_window_close(builder: ms.StreamsBuilder) -> None:
    windowed = builder.stream("in").group_by_key().windowed_by(SLIDING, emit=ms.on_window_close)
    windowed.count(store=KEPT_A_MINUTE).to_stream().to("out")


@scenario("out")
@dsl
def session_count(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").group_by_key().windowed_by(SESSION).count(store="w").to_stream().to("out")


@scenario("out")
@dsl
def session_reduce_concat(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by_key().windowed_by(SESSION)
    grouped.reduce(concatenated, store="w").to_stream().to("out")


@scenario("out")
@dsl
def session_aggregate_concat(builder: ms.StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by_key().windowed_by(SESSION)
    merged = grouped.aggregate(empty, appended, lambda _, left, right: f"{left}~{right}", store="w")
    merged.to_stream().to("out")


@scenario("out")
@dsl
def tumbling_emit_on_window_close(builder: ms.StreamsBuilder) -> None:
    windowed = builder.stream("in").group_by_key().windowed_by(TUMBLING, emit=ms.on_window_close)
    windowed.count(store=KEPT_A_MINUTE).to_stream().to("out")


@scenario("out")
@dsl
def hopping_emit_on_window_close(builder: ms.StreamsBuilder) -> None:
    windowed = builder.stream("in").group_by_key().windowed_by(HOPPING, emit=ms.on_window_close)
    windowed.count(store=KEPT_A_MINUTE).to_stream().to("out")


@scenario("out")
@dsl
def session_emit_on_window_close(builder: ms.StreamsBuilder) -> None:
    windowed = builder.stream("in").group_by_key().windowed_by(SESSION, emit=ms.on_window_close)
    windowed.count(store="w").to_stream().to("out")


THROTTLED_CLOSE = ms.EmitStrategy.on_window_close(every=1000)
LOSING_CLOSE = ms.EmitStrategy.on_window_close(expired="lost")


@scenario("out")
@dsl
def tumbling_emit_on_window_close_throttled(builder: ms.StreamsBuilder) -> None:
    windowed = builder.stream("in").group_by_key().windowed_by(TUMBLING, emit=THROTTLED_CLOSE)
    windowed.count(store=KEPT_A_MINUTE).to_stream().to("out")


@scenario("out")
@dsl
def tumbling_emit_on_window_close_default_retention(builder: ms.StreamsBuilder) -> None:
    windowed = builder.stream("in").group_by_key().windowed_by(TUMBLING, emit=LOSING_CLOSE)
    windowed.count(store="w").to_stream().to("out")


@scenario("out")
@dsl
def session_emit_on_window_close_throttled(builder: ms.StreamsBuilder) -> None:
    windowed = builder.stream("in").group_by_key().windowed_by(SESSION, emit=THROTTLED_CLOSE)
    windowed.count(store="w").to_stream().to("out")


# Cogroup


def cogrouped(builder: ms.StreamsBuilder) -> ms.CogroupedKStream[str, str]:
    left, right = (builder.stream(topic).group_by_key() for topic in ("left", "right"))
    return left.cogroup(lambda _, v, so_far: f"{so_far}<{text(v)}").cogroup(
        right, lambda _, v, so_far: f"{so_far}>{text(v)}"
    )


@scenario("out")
@dsl
def cogroup_two_streams(builder: ms.StreamsBuilder) -> None:
    cogrouped(builder).aggregate(empty, store="cg").to_stream().to("out")


@scenario("out")
@dsl
def cogroup_windowed(builder: ms.StreamsBuilder) -> None:
    cogrouped(builder).windowed_by(TUMBLING).aggregate(empty, store="w").to_stream().to("out")


@scenario("out")
@dsl
def cogroup_sliding(builder: ms.StreamsBuilder) -> None:
    cogrouped(builder).windowed_by(SLIDING).aggregate(empty, store="w").to_stream().to("out")


@scenario("out")
@dsl
def cogroup_session(builder: ms.StreamsBuilder) -> None:
    sessions = cogrouped(builder).windowed_by(SESSION)
    sessions.aggregate(empty, lambda _, left, right: f"{left}~{right}", store="w").to_stream().to("out")


# Suppress

FINAL = ms.Suppressed.until_window_closes()


@scenario("out")
@dsl
def tumbling_suppress_until_close(builder: ms.StreamsBuilder) -> None:
    counts = builder.stream("in").group_by_key().windowed_by(TUMBLING).count(store="w")
    counts.suppress(FINAL).to_stream().to("out")


@scenario("out")
@dsl
def hopping_suppress_until_close(builder: ms.StreamsBuilder) -> None:
    counts = builder.stream("in").group_by_key().windowed_by(HOPPING).count(store="w")
    counts.suppress(FINAL).to_stream().to("out")


@scenario("out")
@dsl
def session_suppress_until_close(builder: ms.StreamsBuilder) -> None:
    counts = builder.stream("in").group_by_key().windowed_by(SESSION).count(store="w")
    counts.suppress(FINAL).to_stream().to("out")


@scenario("out")
@dsl
def suppress_time_limit(builder: ms.StreamsBuilder) -> None:
    suppressed = builder.table("in", store="t").suppress(ms.Suppressed.until_time_limit(500))
    suppressed.to_stream().to("out")


@scenario("out")
@dsl
def suppress_max_records_emit_early(builder: ms.StreamsBuilder) -> None:
    few = ms.Suppressed.until_time_limit(2000, max_records=3)
    builder.table("in", store="t").suppress(few).to_stream().to("out")


@scenario("out-map", "out-count", "out-suppressed", "out-join")
@dsl
def dsl_headers_propagation(builder: ms.StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.map_values(lambda v: f"{text(v)}!").to("out-map")
    counts = stream.group_by(lambda _, v: first_or_none(v)).count(store="counts")
    counts.to_stream().to("out-count", value=INT64)
    windowed = stream.group_by_key().windowed_by(ms.TumblingWindows(1000, grace=500)).count(store="w")
    windowed.suppress(FINAL).to_stream(lambda window, _: window.key).to("out-suppressed", value=INT64)
    stream.join(builder.stream("right"), join2, windows=as_kafka_streams(300, 300, 300)).to("out-join")


# Tables


@scenario("out-filter", "out-filter-store", "out-not-map", "out-map")
@dsl
def table_filter_mapvalues(builder: ms.StreamsBuilder) -> None:
    table = builder.table("in", store="t")
    table.filter(is_even).to_stream().to("out-filter")
    table.filter(is_even, store="f").to_stream().to("out-filter-store")
    marked = table.filter_not(is_even).map_values(lambda v: f"{v}!", store="m")
    marked.to_stream().to("out-not-map")
    table.map_values(lambda k, v: k + v, with_key=True).to_stream().to("out-map")


@scenario("out")
@dsl
def table_source_tombstones(builder: ms.StreamsBuilder) -> None:
    builder.table("in", store="t").to_stream().to("out")


@scenario("out")
@dsl
def table_source_versioned(builder: ms.StreamsBuilder) -> None:
    versioned_table(builder, "in", "vt", 1000).to_stream().to("out")


@scenario("out", "out-rekeyed")
@dsl
def table_to_stream_roundtrip(builder: ms.StreamsBuilder) -> None:
    updates = builder.table("in", store="t").to_stream()
    primed = updates.map_values(lambda v: None if v is None else f"{v}'")
    primed.to_table(store="rt").to_stream().to("out")
    rekeyed = updates.select_key(lambda k, v: k if v is None else f"{k}{num(v) % 2}")
    rekeyed.to_table(store="rk").to_stream().to("out-rekeyed")


class WithPrevious(ms.Processor):
    """Forwards each value with the previous value of its key. A null value deletes the key."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        self.store = context.state_store("kv")

    def process(self, record: ms.Record) -> None:
        if record.key is None:
            self.context.forward(record.with_value(f"first:{text(record.value)}"))
            second = record.with_value(f"second:{text(record.value)}")
            self.context.forward(second.with_timestamp(record.timestamp + 5))
        else:
            self.context.forward(record.with_value(self.replace(record.key, record.value)))

    def replace(self, key: str, value: str | None) -> str | None:
        if value is None:
            old = self.store.delete(key)
            return None if old is None else f"deleted:{old}"
        old = self.store.get(key)
        self.store.put(key, value)
        return f"{value}<{text(old)}"


@scenario("out")
@dsl
def transform_values_like(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(string_store("kv"))
    processed = builder.stream("in").process_values(WithPrevious, stores=["kv"])
    processed.to("out")
    processed.group_by_key().count(store="counts")


# Time


@scenario("out")
@dsl
def two_topics_merge_time(builder: ms.StreamsBuilder) -> None:
    merged = builder.stream("left").merge(builder.stream("right"))
    merged.process(forward_value(lambda context, _: str(context.stream_time_ms))).to("out")


def time_in_value(record: ms.ConsumerRecord, partition_time: int) -> int:
    return partition_time if record.value is None else int(record.value.split(":")[0])


@scenario("out")
@dsl
def timestamp_extractor_from_value(builder: ms.StreamsBuilder) -> None:
    with_stream_time = forward_value(lambda context, record: f"{text(record.value)}/{context.stream_time_ms}")
    builder.stream("in", timestamp=time_in_value).process(with_stream_time).to("out")


# Processor API


class Dedup(ms.Processor):
    """Forwards the first record of each value."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        self.seen = context.state_store("seen")

    def process(self, record: ms.Record) -> None:
        if record.value is None:
            return
        if self.seen.put_if_absent(record.value, text(record.key)) is None:
            self.context.forward(record)


@scenario("out")
@dsl
def processor_kv_store_dedup(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(string_store("seen"))
    builder.stream("in").process(Dedup, stores=["seen"]).to("out")


class Buffer(ms.Processor):
    """Collects the values of each key. A punctuation forwards and deletes them."""

    def __init__(self, interval_ms: int, kind: ms.PunctuationType) -> None:
        self.interval_ms = interval_ms
        self.kind = kind

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        self.store = context.state_store("buf")
        context.schedule(self.interval_ms, self.kind, self.flush)

    def process(self, record: ms.Record) -> None:
        if record.key is None or record.value is None:
            return
        old = self.store.get(record.key)
        self.store.put(record.key, record.value if old is None else f"{old},{record.value}")

    def flush(self, timestamp: int) -> None:
        for key, value in list(self.store.all()):
            self.context.forward(ms.Record(key, value, timestamp))
            self.store.delete(key)


def buffered(builder: ms.StreamsBuilder, interval_ms: int, kind: ms.PunctuationType) -> None:
    builder.add_state_store(string_store("buf"))
    builder.stream("in").process(lambda: Buffer(interval_ms, kind), stores=["buf"]).to("out")


@scenario("out")
@dsl
def processor_stream_time_punctuate(builder: ms.StreamsBuilder) -> None:
    buffered(builder, 500, ms.stream_time)


@scenario("out")
@dsl
def processor_wall_clock_punctuate(builder: ms.StreamsBuilder) -> None:
    buffered(builder, 1000, ms.wall_clock)


class CancellingTicks(Counting):
    """Punctuates five times in stream time, then seven times in wall-clock time, and forwards all records."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        context.schedule(300, ms.stream_time, self.tick_in_stream_time)

    def process(self, record: ms.Record) -> None:
        self.context.forward(record)

    def cancel(self, tick: Callable[[int], None]) -> None:
        for schedule in self.context.scheduled(tick):
            schedule.cancel()

    def tick_in_stream_time(self, timestamp: int) -> None:
        number = self.next_number()
        self.context.forward(ms.Record("stream", str(number), timestamp))
        if number == 4:
            self.cancel(self.tick_in_stream_time)
            self.context.schedule(700, ms.wall_clock, self.tick_in_wall_clock)

    def tick_in_wall_clock(self, timestamp: int) -> None:
        number = self.next_number()
        self.context.forward(ms.Record("wall", f"{number}@{self.context.stream_time_ms}", timestamp))
        if number == 11:
            self.cancel(self.tick_in_wall_clock)


@scenario("out")
@dsl
def processor_punctuate_cancel(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(Counting.store())
    builder.stream("in").process(CancellingTicks, stores=["number"]).to("out")


class TicksFromStartTime(ms.Processor):
    """Punctuates in stream time and wall-clock time, on grids that do not start at 0. Drops all records."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        context.schedule(1000, ms.stream_time, self.tick_in_stream_time, start_time=250)
        context.schedule(1500, ms.wall_clock, self.tick_in_wall_clock, start_time=400)

    def process(self, record: ms.Record) -> None:
        pass

    def tick_in_stream_time(self, timestamp: int) -> None:
        self.context.forward(ms.Record("stream", str(self.context.stream_time_ms), timestamp))

    def tick_in_wall_clock(self, timestamp: int) -> None:
        self.context.forward(ms.Record("wall", str(self.context.wall_clock_ms), timestamp))


@scenario("out")
@dsl
def processor_punctuate_start_time(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").process(TicksFromStartTime).to("out")


def origin(context: ms.ProcessorContext, _record: ms.Record) -> str:
    metadata = context.record_metadata
    position = f"{metadata.topic}/{metadata.partition}/{metadata.offset}"
    return f"{position}/{context.stream_time_ms}/{context.wall_clock_ms}"


@scenario("out")
@dsl
def processor_context_info(builder: ms.StreamsBuilder) -> None:
    merged = builder.stream("left").merge(builder.stream("right"))
    merged.process(forward_value(origin)).to("out")


Headers = tuple[tuple[str, bytes | None], ...]


def last_id(headers: Headers) -> str:
    ids = [value for name, value in headers if name == "id"]
    return ids[-1].decode() if ids else "none"


class NumberInHeader(Counting):
    """Adds the number of the record as a header, and removes the `id` headers of every fourth record."""

    def process(self, record: ms.Record) -> None:
        number = self.next_number()
        headers = (*record.headers, ("n", str(number).encode()))
        if (number + 1) % 4 == 0:
            headers = tuple(header for header in headers if header[0] != "id")
        value = f"{text(record.value)}~{last_id(record.headers)}"
        self.context.forward(record.with_value(value).with_headers(headers))


def spell_headers(context: ms.ProcessorContext, record: ms.Record) -> None:
    spelled = ",".join(name + value.decode() for name, value in record.headers)
    context.forward(record.with_value(f"{record.value}~{spelled}"))
    context.forward(record.with_value("bare").with_headers(()))


@scenario("out")
@dsl
def processor_headers(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(Counting.store())
    builder.stream("in").process(NumberInHeader, stores=["number"]).process(each(spell_headers)).to("out")


def route(context: ms.ProcessorContext, record: ms.Record) -> None:
    if record.value is None:
        context.forward(record)
    elif is_even(record.key, record.value):
        context.forward(record.with_timestamp(record.timestamp + 1), child="even-sink")
    else:
        context.forward(record.with_value(f"odd:{record.value}"), child="odd-sink")


@scenario("out-even", "out-odd")
def processor_two_outputs() -> ms.Topology:
    topology = ms.Topology()
    topology.add_source("in", ["in"], key=STRING, value=STRING)
    topology.add_processor("router", each(route), parents=["in"])
    topology.add_sink("even-sink", "out-even", key=STRING, value=STRING, parents=["router"])
    topology.add_sink("odd-sink", "out-odd", key=STRING, value=STRING, parents=["router"])
    return topology


def listed(entries: Iterable[tuple[str, str]]) -> str:
    return "[" + ",".join(f"{key}={value}" for key, value in entries) + "]"


class Browser(ms.Processor):
    """Stores each record, then forwards the results of all ways to read the store."""

    def init(self, context: ms.ProcessorContext) -> None:
        super().init(context)
        self.store = context.state_store("kv")

    def process(self, record: ms.Record) -> None:
        if record.key is not None:
            self.store.put(record.key, record.value)
        self.context.forward(record.with_value(self.seen()))

    def seen(self) -> str:
        store = self.store
        lists = {
            "range": store.range("ab", "b"),
            "to": store.range(None, "ab"),
            "from": store.range("b", None),
            "rev": store.reverse_range("ab", "c"),
            "prefix": store.prefix_scan("ab"),
            "all": store.all(),
            "revall": store.reverse_all(),
        }
        spelled = [f"{name}={listed(entries)}" for name, entries in lists.items()]
        return ";".join([*spelled, f"get={text(store.get('ab'))}"])


@scenario("out")
@dsl
def fetch_range_all_prefix(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(string_store("kv"))
    builder.stream("in").process(Browser, stores=["kv"]).to("out")


Found = Iterable[tuple[ms.Windowed, str]]


def windows_listed(found: Found) -> str:
    return "[" + ",".join(f"{w.key}@{w.start}-{w.end}={value}" for w, value in found) + "]"


def starts_listed(found: Iterable[tuple[int, str]]) -> str:
    return listed((str(start), value) for start, value in found)


def window_store(name: str, *, retain_duplicates: bool) -> ms.stores.StoreSpec:
    return ms.stores.window(
        name, STRING, STRING, retention=2000, size=500, retain_duplicates=retain_duplicates
    )


def browse_windows(context: ms.ProcessorContext, record: ms.Record) -> None:
    if record.key is None:
        return
    store, key, timestamp = context.state_store("ws"), record.key, record.timestamp
    low, high = max(0, timestamp - 600), timestamp + 600
    store.put(key, record.value, timestamp)
    seen = {
        "get": text(store.fetch(key, timestamp)),
        "fetch": starts_listed(store.fetch(key, low, high)),
        "back": starts_listed(store.reverse_fetch(key, low, high)),
        "range": windows_listed(store.fetch_range("b", "c", low, timestamp)),
        "all": windows_listed(store.fetch_all(max(0, timestamp - 200), timestamp + 200)),
    }
    context.forward(record.with_value(";".join(f"{name}={value}" for name, value in seen.items())))


@scenario("out")
@dsl
def window_store_fetch(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(window_store("ws", retain_duplicates=False))
    builder.stream("in").process(each(browse_windows), stores=["ws"]).to("out")


@scenario("out")
@dsl
def window_store_fetch_in_memory(builder: ms.StreamsBuilder) -> None:
    store = ms.stores.window("ws", STRING, STRING, retention=2000, size=500, order="time", strict=True)
    builder.add_state_store(store)
    builder.stream("in").process(each(browse_windows), stores=["ws"]).to("out")


def browse_duplicates(context: ms.ProcessorContext, record: ms.Record) -> None:
    if record.key is not None:
        store, timestamp = context.state_store("ws"), record.timestamp
        store.put(record.key, record.value, timestamp)
        found = starts_listed(store.fetch(record.key, max(0, timestamp - 500), timestamp))
        context.forward(record.with_value(f"fetch={found}"))


@scenario("out")
@dsl
def window_store_retain_duplicates(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(window_store("ws", retain_duplicates=True))
    builder.stream("in").process(each(browse_duplicates), stores=["ws"]).to("out")


def browse_sessions(context: ms.ProcessorContext, record: ms.Record) -> None:
    if record.key is None:
        return
    store, key, timestamp = context.state_store("ss"), record.key, record.timestamp
    end = timestamp + (100 if record.value is None else int(record.value.split(":")[0]))
    if record.value is None:
        store.remove(ms.Windowed(key, timestamp, end))
    else:
        store.put(ms.Windowed(key, timestamp, end), record.value)
    low, high = max(0, timestamp - 300), timestamp + 300
    seen = {
        "one": text(store.fetch_session(key, timestamp, end)),
        "find": windows_listed(store.find_sessions(key, low, high)),
        "back": windows_listed(store.reverse_find_sessions(key, low, high)),
        "fetch": windows_listed(store.fetch(key)),
        "range": windows_listed(store.find_sessions_range("b", "c", low, high)),
    }
    context.forward(record.with_value(";".join(f"{name}={value}" for name, value in seen.items())))


@scenario("out")
@dsl
def session_store_fetch(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(ms.stores.session("ss", STRING, STRING, retention=2000))
    builder.stream("in").process(each(browse_sessions), stores=["ss"]).to("out")


@scenario("out")
@dsl
def session_store_fetch_in_memory(builder: ms.StreamsBuilder) -> None:
    store = ms.stores.session("ss", STRING, STRING, retention=2000, order="time", strict=True)
    builder.add_state_store(store)
    builder.stream("in").process(each(browse_sessions), stores=["ss"]).to("out")


def version_text(found: ms.VersionedRecord | None) -> str:
    return "null" if found is None else f"{found.value}@{found.timestamp}.."


def browse_versions(context: ms.ProcessorContext, record: ms.Record) -> None:
    if record.key is None:
        return
    store, key, timestamp = context.state_store("vs"), record.key, record.timestamp
    if record.value is None:
        head = f"delete={version_text(store.delete(key, timestamp))}"
    else:
        valid_to = store.put(key, None if record.value == "null" else record.value, timestamp)
        head = f"put={'NOT_PUT' if valid_to is None else valid_to}"
    seen = {
        "get": store.get(key),
        "asof": store.get(key, timestamp),
        "asof-500": store.get(key, max(0, timestamp - 500)),
        "asof-1800": store.get(key, max(0, timestamp - 1800)),
        "asof+400": store.get(key, timestamp + 400),
    }
    found = [f"{name}={version_text(version)}" for name, version in seen.items()]
    context.forward(record.with_value(";".join([head, *found])))


@scenario("out")
@dsl
def versioned_store_get(builder: ms.StreamsBuilder) -> None:
    builder.add_state_store(ms.stores.versioned("vs", STRING, STRING, history_retention=2000))
    builder.stream("in").process(each(browse_versions), stores=["vs"]).to("out")


# Joins


def join2(left: str | None, right: str | None) -> str:
    return f"{text(left)}+{text(right)}"


def as_kafka_streams(before: int, after: int, grace: int, *, interval: int = 0) -> ms.JoinWindows:
    """Return join windows that behave as in Kafka Streams where the defaults of Millstream differ."""
    return ms.JoinWindows(before, after, grace, unmatched="early", unmatched_interval=interval)


SYMMETRIC = as_kafka_streams(500, 500, 300)
ASYMMETRIC = as_kafka_streams(200, 600, 100)
THROTTLED = as_kafka_streams(500, 500, 300, interval=1000)


@scenario("out")
@dsl
def ss_inner(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").join(builder.stream("right"), join2, windows=SYMMETRIC).to("out")


@scenario("out")
@dsl
def ss_inner_no_grace(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").join(builder.stream("right"), join2, windows=as_kafka_streams(500, 500, 0)).to(
        "out"
    )


@scenario("out")
@dsl
def ss_asymmetric(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").join(builder.stream("right"), join2, windows=ASYMMETRIC).to("out")


@scenario("out")
@dsl
def ss_left(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").left_join(builder.stream("right"), join2, windows=SYMMETRIC).to("out")


@scenario("out")
@dsl
def ss_outer(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").outer_join(builder.stream("right"), join2, windows=SYMMETRIC).to("out")


@scenario("out")
@dsl
def ss_left_asymmetric(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").left_join(builder.stream("right"), join2, windows=ASYMMETRIC).to("out")


@scenario("out")
@dsl
def ss_outer_asymmetric(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").outer_join(builder.stream("right"), join2, windows=ASYMMETRIC).to("out")


@scenario("out")
@dsl
def ss_left_throttled(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").left_join(builder.stream("right"), join2, windows=THROTTLED).to("out")


@scenario("out")
@dsl
def ss_outer_throttled(builder: ms.StreamsBuilder) -> None:
    builder.stream("left").outer_join(builder.stream("right"), join2, windows=THROTTLED).to("out")


@scenario("out")
@dsl
def ss_self_join(builder: ms.StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.join(stream, join2, windows=as_kafka_streams(200, 200, 300)).to("out")


@scenario("out")
@dsl
def ss_inner_rekeyed(builder: ms.StreamsBuilder) -> None:
    rekeyed = builder.stream("left").select_key(lambda _, v: first_or_none(v))
    rekeyed.join(builder.stream("right"), join2, windows=SYMMETRIC).to("out")


@scenario("out")
@dsl
def st_inner(builder: ms.StreamsBuilder) -> None:
    builder.stream("stream").join(builder.table("table", store="t"), join2).to("out")


@scenario("out")
@dsl
def st_left(builder: ms.StreamsBuilder) -> None:
    builder.stream("stream").left_join(builder.table("table", store="t"), join2).to("out")


@scenario("out")
@dsl
def tt_inner(builder: ms.StreamsBuilder) -> None:
    left, right = builder.table("left", store="lt"), builder.table("right", store="rt")
    left.join(right, join2, store="jt").to_stream().to("out")


@scenario("out")
@dsl
def tt_left(builder: ms.StreamsBuilder) -> None:
    left, right = builder.table("left", store="lt"), builder.table("right", store="rt")
    left.left_join(right, join2, store="jt").to_stream().to("out")


@scenario("out")
@dsl
def tt_outer(builder: ms.StreamsBuilder) -> None:
    left, right = builder.table("left", store="lt"), builder.table("right", store="rt")
    left.outer_join(right, join2, store="jt").to_stream().to("out")


@scenario("out")
@dsl
def tt_outer_virtual(builder: ms.StreamsBuilder) -> None:
    left, right = builder.table("left", store="lt"), builder.table("right", store="rt")
    left.outer_join(right, join2).to_stream().to("out")


# Versioned tables


@scenario("out")
@dsl
def st_inner_versioned_grace(builder: ms.StreamsBuilder) -> None:
    table = versioned_table(builder, "table", "vt", 5000)
    builder.stream("stream").join(table, join2, grace=300).to("out")


@scenario("out")
@dsl
def st_left_versioned_grace(builder: ms.StreamsBuilder) -> None:
    table = versioned_table(builder, "table", "vt", 5000)
    builder.stream("stream").left_join(table, join2, grace=300).to("out")


@scenario("out")
@dsl
def st_left_versioned_no_grace(builder: ms.StreamsBuilder) -> None:
    table = versioned_table(builder, "table", "vt", 1500)
    builder.stream("stream").left_join(table, join2).to("out")


@scenario("out")
@dsl
def tt_inner_versioned(builder: ms.StreamsBuilder) -> None:
    left = versioned_table(builder, "left", "lt", 1500)
    right = versioned_table(builder, "right", "rt", 1500)
    left.join(right, join2).to_stream().to("out")


# Foreign keys


def foreign_key(value: str) -> str | None:
    return None if value.startswith("-") else value.split(":")[0]


def by_foreign_key(builder: ms.StreamsBuilder, kind: str, **options: str) -> None:
    left, right = builder.table("left", store="lt"), builder.table("right", store="rt")
    getattr(left, kind)(right, join2, on=foreign_key, **options).to_stream().to("out")


@scenario("out")
@dsl
def tt_fk_inner(builder: ms.StreamsBuilder) -> None:
    by_foreign_key(builder, "join", store="jt")


@scenario("out")
@dsl
def tt_fk_left(builder: ms.StreamsBuilder) -> None:
    by_foreign_key(builder, "left_join", store="jt")


@scenario("out")
@dsl
def tt_fk_inner_virtual(builder: ms.StreamsBuilder) -> None:
    by_foreign_key(builder, "join")


# Global tables


def row_key(_key: str | None, value: str | None) -> str | None:
    return None if value is None or value.startswith("-") else value.split(":")[0]


def with_row(left: str, right: str | None) -> str:
    return f"{text(left)}+{text(right)}"


@scenario("out")
@dsl
def stream_globaltable_inner(builder: ms.StreamsBuilder) -> None:
    table = builder.global_table("global", store="gt")
    builder.stream("in").join(table, row_key, with_row).to("out")


@scenario("out")
@dsl
def stream_globaltable_left(builder: ms.StreamsBuilder) -> None:
    table = builder.global_table("global", store="gt")
    builder.stream("in").left_join(table, row_key, with_row).to("out")
