"""A cache merges the updates that a table forwards, and changes nothing else.

Tables of all kinds process random records, cut into random steps. Without a cache, they forward every update. The expected output
with a cache follows from these: the newest update of each row in a step, in the order of the newest updates, except for deletions of
rows that were not forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine.task import Task
from millstream.core.model import serdes
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.state.memory import MemoryStores

TEXT, JSON, PICKLED = ms.serdes.string, ms.serdes.json, ms.serdes.pickle
CHANGE = serdes.change(JSON)
Table = ms.KTable[Any, Any]
Row = tuple[str, str | None, str | None, int]
"""Topic, key, value, timestamp."""
Update = tuple[Any, Any, int]
"""Key, value, timestamp."""
LARGE_CACHE, SMALL_CACHE = 1 << 20, 450


def grouped(builder: ms.StreamsBuilder, topic: str = "left") -> ms.KGroupedStream[Any, Any]:
    return builder.stream(topic, key=TEXT, value=TEXT).group_by_key()


def shortest(so_far: str, value: str) -> str | None:
    return None if value == "x" else min(so_far, str(value))


def collected(key: Any, value: Any, so_far: list[Any]) -> list[Any] | None:
    return None if value == "x" else [*so_far, value]


def concatenated(key: Any, first: list[Any], second: list[Any]) -> list[Any]:
    return [*first, *second]


def passes(key: str, value: str) -> bool:
    return value > "m"


def cogrouped(builder: ms.StreamsBuilder) -> Any:
    return grouped(builder).cogroup(collected).cogroup(grouped(builder, "right"), collected)


TABLES: dict[str, Callable[[ms.StreamsBuilder], Table]] = {
    "count": lambda b: grouped(b).count(),
    "reduce": lambda b: grouped(b).reduce(shortest),
    "aggregate": lambda b: grouped(b).aggregate(list, collected, value=JSON),
    "table": lambda b: b.table("left", key=TEXT, value=TEXT),
    "filtered": lambda b: b.table("left", key=TEXT, value=TEXT).filter(passes, store="big"),
    "tumbling": lambda b: grouped(b).windowed_by(ms.TumblingWindows(5, grace=3)).count(),
    "hopping": lambda b: grouped(b).windowed_by(ms.HoppingWindows(6, 2, grace=3)).reduce(shortest),
    "sliding": lambda b: (
        grouped(b).windowed_by(ms.SlidingWindows(4, grace=5)).aggregate(list, collected, value=JSON)
    ),
    "sessions": lambda b: (
        grouped(b)
        .windowed_by(ms.SessionWindows(2, grace=9))
        .aggregate(list, collected, concatenated, value=JSON)
    ),
    "cogroup": lambda b: cogrouped(b).aggregate(list, value=JSON),
    "windowed cogroup": lambda b: (
        # With a shorter retention, the other input could expire a window, which would then start again.
        cogrouped(b)
        .windowed_by(ms.TumblingWindows(5, grace=3))
        .aggregate(list, store=ms.stores.options("w", retention=40), value=JSON)
    ),
}
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right", "third"]),
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["k", "p", "x", None]),
        st.integers(0, 30),
    ),
    max_size=14,
)
STEPS = st.lists(ROWS, min_size=1, max_size=5)
FILTERED_OUT_TWICE = [
    [("left", "a", "p", 0)],
    [("left", "a", "k", 0), ("left", "b", "p", 0), ("left", "a", "k", 1)],
]
"""A cache of the unfiltered table forwards only the second update that is filtered out, so the row is deleted later."""


class Parts:
    """The tasks of a topology; records that they send to each other are fed in the next round."""

    def __init__(self, topology: ms.Topology, cache_bytes: int) -> None:
        self.plan = topology.plan("app")
        self.stores = [MemoryStores() for _ in self.plan.subtopologies]
        self.offsets: dict[str, int] = {}
        self.merged = 0
        self.tasks = [
            Task(sub, TaskId(sub.id, 0), application_id="app", stores=stores, cache_bytes=cache_bytes)
            for sub, stores in zip(self.plan.subtopologies, self.stores)
        ]
        for task in self.tasks:
            task.init(0)

    def run(self, rows: list[Row]) -> list[tuple[str, list[Any]]]:
        """Feed rows, take one step of each task, until no record is in flight; return what was sent, step by step."""
        for topic in {row[0] for row in rows} & set(self.plan.subtopology_of):
            topic_rows = [row[1:] for row in rows if row[0] == topic]
            keys, values, timestamps = map(list, zip(*topic_rows))
            self._feed(
                topic,
                Records([k and k.encode() for k in keys], [v and v.encode() for v in values], timestamps),
            )
        return list(self._until_quiet())

    def _until_quiet(self) -> Iterator[tuple[str, list[Any]]]:
        quiet = False
        while not quiet:
            quiet = True
            for task, stores in zip(self.tasks, self.stores):
                outcome = task.step(0)
                stores.apply(outcome.changes, outcome.dropped_slices)
                self.merged += outcome.metrics.merged
                for topic, records in outcome.sends:
                    yield topic, list(zip(records.keys, records.values, records.timestamps))
                    if topic in self.plan.subtopology_of:
                        quiet = False
                        self._feed(topic, records)

    def _feed(self, topic: str, records: Records) -> None:
        first = self.offsets.get(topic, 0)
        self.offsets[topic] = first + len(records)
        records.offsets = list(range(first, self.offsets[topic]))
        sub = self.plan.subtopology_of[topic]
        self.tasks[sub.id].feed(TopicPartition(topic, 0), records, self.offsets[topic])


class TableRun:
    """A run of a table over some steps.

    Attributes:
        forwarded: The updates of each step.
        changes: The same updates with new and old values, as the aggregation behind the table gets them; empty without one.
        content: The final content of its stores.
        merged: The number of updates that were counted as merged.
    """

    def __init__(self, table: str, steps: list[list[Row]], cache_bytes: int, *, behind: bool = True) -> None:
        builder = ms.StreamsBuilder()
        result = TABLES[table](builder)
        result.to_stream().to("out", key=PICKLED, value=JSON)
        if behind:
            result.group_by(lambda k, v: (k, v), key=PICKLED, value=JSON).count(store="behind")
        parts = Parts(builder.build(), cache_bytes)
        self.forwarded: list[list[Update]] = []
        self.changes: list[list[tuple[Any, Any, Any]]] = []
        for rows in steps:
            sent = parts.run(rows)
            self.forwarded.append([(PICKLED.deserialize(k), v, t) for k, v, t in sent_to(sent, "out")])
            changes = sent_to(sent, "app-behind-repartition")
            self.changes.append([(PICKLED.deserialize(k), *CHANGE.deserialize(v)) for k, v, _ in changes])
        stores = parts.stores[0]
        self.content = {name: list(stores.open(name).scan(None, None)) for name in stores.names()}
        self.merged = parts.merged


def sent_to(sent: list[tuple[str, list[Any]]], topic: str) -> list[Any]:
    return [row for name, rows in sent if name == topic for row in rows]


def updates(table: str, steps: list[list[Row]], uncached: TableRun) -> list[list[Update]]:
    """Return all updates of a table, in steps, from the table without a cache.

    These include deletions of rows that a filtered table does not have. The table forwards none of them, but the cache of the unfiltered
    table may forward one of them instead of an earlier update that does delete the row.
    """
    if table != "filtered":
        return uncached.forwarded
    return [
        [(key, _passing(key, value), timestamp) for key, value, timestamp in step]
        for step in TableRun("table", steps, 0, behind=False).forwarded
    ]


def _passing(key: str, value: bytes | None) -> bytes | None:
    return value if value is not None and passes(key, JSON.deserialize(value)) else None


def merged(steps: list[list[Update]]) -> list[list[Update]]:
    """Return the updates of each step that a cache forwards."""
    forwarded: dict[Any, Any] = {}
    results = []
    for step in steps:
        newest: dict[Any, Any] = {}
        for key, value, timestamp in step:
            newest.pop(key, None)
            newest[key] = value, timestamp
        results.append(
            [(k, v, t) for k, (v, t) in newest.items() if v is not None or forwarded.get(k) is not None]
        )
        forwarded.update({key: value for key, (value, _) in newest.items()})
    return results


@settings(max_examples=300)
@given(table=st.sampled_from(sorted(TABLES)), steps=STEPS, behind=st.booleans())
@example("sessions", [[("left", "a", "k", 1), ("left", "a", "k", 1), ("left", "a", "x", 3)]], True)
@example("filtered", FILTERED_OUT_TWICE, False)
def test_a_cache_forwards_the_newest_update_of_each_row_in_a_step(
    table: str, steps: list[list[Row]], behind: bool
) -> None:
    without_cache, cached = (
        TableRun(table, steps, 0, behind=behind),
        TableRun(table, steps, LARGE_CACHE, behind=behind),
    )
    assert cached.forwarded == merged(updates(table, steps, without_cache))
    assert cached.content == without_cache.content
    assert not without_cache.merged
    if table != "filtered":  # a filtered table has two caches, one behind the other
        assert cached.merged == sum(map(len, without_cache.forwarded)) - sum(map(len, cached.forwarded))


@settings(max_examples=200)
@given(
    table=st.sampled_from(sorted(TABLES)),
    steps=STEPS,
    cache_bytes=st.sampled_from([LARGE_CACHE, SMALL_CACHE]),
)
def test_the_old_value_of_a_change_is_the_new_value_of_the_previous_change(
    table: str, steps: list[list[Row]], cache_bytes: int
) -> None:
    forwarded: dict[Any, Any] = {}
    for step in TableRun(table, steps, cache_bytes).changes:
        for key, new, old in step:
            assert old == forwarded.get(key)
            forwarded[key] = new


@settings(max_examples=200)
@given(table=st.sampled_from(sorted(TABLES)), steps=STEPS, behind=st.booleans())
@example("filtered", FILTERED_OUT_TWICE, False)
def test_a_cache_that_is_too_small_forwards_rows_early_and_loses_none(
    table: str, steps: list[list[Row]], behind: bool
) -> None:
    without_cache, small = (
        TableRun(table, steps, 0, behind=behind),
        TableRun(table, steps, SMALL_CACHE, behind=behind),
    )
    for all_updates, some in zip(updates(table, steps, without_cache), small.forwarded):
        left = iter(all_updates)
        assert all(update in left for update in some), "in the order of the updates"
    assert rows(small) == rows(without_cache)
    assert small.content == without_cache.content


def rows(result: TableRun) -> dict[Any, Any]:
    """Return the final rows of a reader of all updates."""
    known = {key: (value, time) for step in result.forwarded for key, value, time in step}
    return {key: row for key, row in known.items() if row[0] is not None}


def pair(left: Any, right: Any) -> Any:
    return [left, right]


FOREIGN = {"k": "a", "p": "b", "x": "c"}
JOINS: dict[str, Callable[[Table, Table, Table], Table]] = {
    "inner": lambda left, right, third: left.join(right, pair),
    "left": lambda left, right, third: left.left_join(right, pair),
    "outer": lambda left, right, third: left.outer_join(right, pair),
    "three": lambda left, right, third: left.join(right, pair).outer_join(third, pair),
    "of a filtered one": lambda left, right, third: left.left_join(right.filter(lambda k, v: v != "p"), pair),
    "of a kept one": lambda left, right, third: left.join(
        right.filter(lambda k, v: v != "p", store="f"), pair
    ),
    "in a store": lambda left, right, third: left.outer_join(right, pair, store="joined"),
    "by a foreign key": lambda left, right, third: left.join(right, pair, on=FOREIGN.get),
    "left by a foreign key": lambda left, right, third: left.left_join(right, pair, on=FOREIGN.get),
}


@settings(max_examples=300)
@given(
    join=st.sampled_from(sorted(JOINS)),
    steps=STEPS,
    cache_bytes=st.sampled_from([LARGE_CACHE, SMALL_CACHE]),
    uncached=st.booleans(),
)
def test_joins_and_aggregations_behind_caches_end_with_the_same_rows(
    join: str, steps: list[list[Row]], cache_bytes: int, uncached: bool
) -> None:
    def result(cache: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
        builder = ms.StreamsBuilder(default_value_serde=JSON)
        left = builder.table("left", value=TEXT, store="l")
        right = builder.table("right", value=TEXT, store=ms.stores.options("r", cache=not uncached))
        third = builder.table("third", value=TEXT, store="t")
        joined = JOINS[join](left, right, third)
        joined.to_stream().to("joined", value=JSON)
        groups = joined.group_by(lambda k, v: (str(v), k), value=JSON)
        groups.aggregate(list, added, removed, value=JSON).to_stream().to("groups", value=JSON)
        parts = Parts(builder.build(), cache)
        sent = [update for rows in steps for update in parts.run(rows)]
        last = {topic: {k: v for k, v, _ in sent_to(sent, topic)} for topic in ("joined", "groups")}
        known = {k: v for k, v in last["joined"].items() if v is not None}
        return known, {
            k: sorted(JSON.deserialize(v)) for k, v in last["groups"].items() if v not in (None, b"[]")
        }

    assert result(cache_bytes) == result(0)


def added(key: Any, value: Any, group: list[Any]) -> list[Any]:
    return [*group, value]


def removed(key: Any, value: Any, group: list[Any]) -> list[Any]:
    group.remove(value)  # fails if it was never added
    return group
