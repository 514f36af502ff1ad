"""Random topologies: a recipe is a list of steps, each of which adds operators to the topology.

All keys and values are text, so any operator can follow any other. A step names an operator, its inputs and a variant; numbers are
taken modulo the number of choices, so every recipe can be built, and shorter recipes are simpler topologies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

import millstream as ms

Stream = ms.KStream[Any, Any]
Table = ms.KTable[Any, Any]

INPUTS = ("left", "right", "rows", "facts")
"""Topics: two streams, a table and a global table."""


class Step(NamedTuple):
    """One step of a recipe: an operator, the numbers of its inputs, and its variant."""

    operator: str
    first: int
    second: int
    variant: int


@dataclass
class Parts:
    """A topology under construction; further steps may use its ``streams`` and ``tables``."""

    builder: ms.StreamsBuilder
    streams: list[Stream] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    """The numbers of the streams with a successor; the other streams are written to topics."""
    facts: ms.GlobalKTable[Any, Any] | None = None

    def stream(self, number: int) -> Stream:
        chosen = number % len(self.streams)
        self.used.add(chosen)
        return self.streams[chosen]

    def table(self, number: int) -> Table:
        if not self.tables:
            self.tables.append(self.builder.table("rows"))
        return self.tables[number % len(self.tables)]


class Totals(ms.Processor[Any, Any, Any, Any]):
    """Adds up the lengths of the values of a key, and forwards all totals as stream time advances."""

    def init(self, context: ms.ProcessorContext[Any, Any]) -> None:
        super().init(context)
        (name,) = self.names
        self.totals = context.state_store(name)
        context.schedule(7, ms.PunctuationType.STREAM_TIME, self.forward_totals)

    names: tuple[str, ...] = ()

    def process(self, record: ms.Record[Any, Any]) -> None:
        key = record.key or ""
        total = (self.totals.get(key) or 0) + len(record.value or "")
        self.totals.put(key, total)
        self.context.forward(record.with_value(f"{total}"))

    def forward_totals(self, now_ms: int) -> None:
        for key, total in self.totals.all():
            self.context.forward(ms.Record(key, f"{now_ms}:{total}", now_ms))


def totals(name: str) -> type[Totals]:
    store = ms.stores.key_value(name, ms.serdes.string, ms.serdes.int64)
    return type("TotalsOf" + name, (Totals,), {"stores": (store,), "names": (name,)})


def text(value: Any) -> str:
    return f"{value}"


def joined(left: Any, right: Any) -> str:
    return f"({left},{right})"


def last_letter(_: Any, value: Any) -> str | None:
    return value[-1:] or None if value else None


def appended(_: Any, value: Any, total: str) -> str:
    return f"{total}{value}"[-12:]


def removed(_: Any, value: Any, total: str) -> str:
    return f"{total}-{value}"[-12:]


def longer(total: str, value: str) -> str:
    return max(total, value or "", key=len)


def window_text(window: ms.Windowed[Any], _: Any) -> str:
    return f"{window.key}@{window.start}-{window.end}"


WINDOWS: tuple[Any, ...] = (
    ms.TumblingWindows(10, grace=0),
    ms.TumblingWindows(10, grace=8),
    ms.HoppingWindows(12, 5, grace=4),
    ms.SlidingWindows(6, grace=5),
    ms.SessionWindows(5, grace=3),
)
JOIN_WINDOWS = (ms.JoinWindows(5, 5, grace=0), ms.JoinWindows(6, 2, grace=9), ms.JoinWindows(0, 8, grace=3))
STREAM_JOINS = ("join", "left_join", "outer_join", "join_prior")
TABLE_JOINS = ("join", "left_join", "outer_join")


def add_stateless(parts: Parts, step: Step) -> None:
    stream = parts.stream(step.first)
    variants: list[Callable[[], Stream]] = [
        lambda: stream.filter(lambda key, value: value != "b"),
        lambda: stream.filter(lambda key, value: value is not None).filter(ms.col() > "a"),
        lambda: stream.map_values(lambda value: None if value is None else value.upper()),
        lambda: stream.map_values(lambda key, value: f"{key}{value}", with_key=True),
        lambda: stream.flat_map_values(lambda value: [value, value] if value else []),
        lambda: stream.flat_map(lambda key, value: [(value, key), (key, value)]),
        lambda: stream.select_key(last_letter),
        lambda: stream.map(lambda key, value: (value, key)),
        lambda: stream.peek(lambda key, value: None),
        stream.repartition,
    ]
    parts.streams.append(variants[step.variant % len(variants)]())


def add_merge(parts: Parts, step: Step) -> None:
    parts.streams.append(parts.stream(step.first).merge(parts.stream(step.second)))


def add_branches(parts: Parts, step: Step) -> None:
    branches = parts.stream(step.first).split()
    branches = branches.branch(lambda key, value: (value or "") > "a")
    parts.streams.extend(branches.default().values())


def add_processor(parts: Parts, step: Step) -> None:
    name = f"totals{len(parts.streams)}"
    stream = parts.stream(step.first)
    parts.streams.append(
        stream.process(totals(name)) if step.variant % 2 else stream.process_values(totals(name))
    )


def add_aggregation(parts: Parts, step: Step) -> None:
    stream = parts.stream(step.first)
    grouped = stream.group_by(last_letter) if step.variant % 2 else stream.group_by_key()
    variants: list[Callable[[], Table]] = [
        lambda: grouped.count().map_values(text),
        lambda: grouped.reduce(longer),
        lambda: grouped.aggregate(str, appended, value=ms.serdes.string),
        lambda: grouped.cogroup(appended).aggregate(str, value=ms.serdes.string),
    ]
    table = variants[step.second % len(variants)]()
    parts.tables.append(table)
    parts.streams.append(table.to_stream())


def add_windows(parts: Parts, step: Step) -> None:
    windows = WINDOWS[step.second % len(WINDOWS)]
    emit = ms.on_window_close if step.variant % 3 == 1 else ms.on_window_update
    table = parts.stream(step.first).group_by_key().windowed_by(windows, emit=emit).count()
    if step.variant % 3 == 2:
        table = table.suppress(ms.Suppressed.until_window_closes())
    parts.streams.append(table.to_stream(window_text).map_values(text))


def add_stream_join(parts: Parts, step: Step) -> None:
    left, right = parts.stream(step.first), parts.stream(step.second)
    join = getattr(left, STREAM_JOINS[step.variant % len(STREAM_JOINS)])
    parts.streams.append(join(right, joined, windows=JOIN_WINDOWS[step.variant % len(JOIN_WINDOWS)]))


def add_stream_table_join(parts: Parts, step: Step) -> None:
    join = getattr(parts.stream(step.first), TABLE_JOINS[step.variant % 2])
    parts.streams.append(join(parts.table(step.second), joined))


def add_global_join(parts: Parts, step: Step) -> None:
    parts.facts = parts.facts or parts.builder.global_table("facts")
    join = getattr(parts.stream(step.first), TABLE_JOINS[step.variant % 2])
    parts.streams.append(join(parts.facts, last_letter, joined))


def add_table_operator(parts: Parts, step: Step) -> None:
    table = parts.table(step.first)
    variants: list[Callable[[], Table]] = [
        lambda: table.filter(lambda key, value: value != "b"),
        lambda: table.map_values(lambda value: f"{value}!"),
        lambda: table.group_by(lambda key, value: (last_letter(key, value), value)).count().map_values(text),
        lambda: table.group_by(lambda key, value: (last_letter(key, value), value)).aggregate(
            str, appended, removed, value=ms.serdes.string
        ),
        lambda: table.suppress(ms.Suppressed.until_time_limit(4)),
    ]
    parts.tables.append(variants[step.variant % len(variants)]())
    parts.streams.append(parts.tables[-1].to_stream())


def add_table_join(parts: Parts, step: Step) -> None:
    left, right = parts.table(step.first), parts.table(step.second)
    if step.variant % 5 > 2:
        join = getattr(left, TABLE_JOINS[step.variant % 2])
        parts.tables.append(join(right, joined, on=lambda value: (value or "")[-1:] or None))
    else:
        parts.tables.append(getattr(left, TABLE_JOINS[step.variant % 5])(right, joined))
    parts.streams.append(parts.tables[-1].to_stream())


OPERATORS: dict[str, Callable[[Parts, Step], None]] = {
    "stateless": add_stateless,
    "merge": add_merge,
    "branches": add_branches,
    "processor": add_processor,
    "aggregation": add_aggregation,
    "windows": add_windows,
    "stream-stream": add_stream_join,
    "stream-table": add_stream_table_join,
    "stream-global": add_global_join,
    "table": add_table_operator,
    "table-table": add_table_join,
}

RECIPES = st.lists(
    st.builds(
        Step, st.sampled_from(sorted(OPERATORS)), st.integers(0, 7), st.integers(0, 7), st.integers(0, 59)
    ),
    min_size=2,
    max_size=8,
)


def built(recipe: Sequence[Step]) -> ms.Topology:
    """Build a recipe. Streams without a successor are written to topics ``out-0``, ``out-1`` and so on."""
    parts = Parts(ms.StreamsBuilder())
    parts.streams += [parts.builder.stream("left"), parts.builder.stream("right")]
    for step in recipe:
        OPERATORS[step.operator](parts, step)
    for number, stream in enumerate(parts.streams):
        if number not in parts.used:
            stream.to(f"out-{number}")
    return parts.builder.build()
