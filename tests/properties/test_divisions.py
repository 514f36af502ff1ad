"""Divisions: after a restart with more key ranges, tasks continue with the state of the undivided tasks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import TopologyTestDriver

Row = tuple[str, str | None, str | None, int]
"""Topic, key, value and timestamp of a record."""

rows = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.none() | st.sampled_from(["", "a", "b", "c", "d", "e", "f\x00", "f", "g", "\x00\xff"]),
        st.none() | st.sampled_from("xyz"),
        st.integers(0, 400),
    ),
    max_size=30,
)
workers = st.sampled_from([(1, 2), (1, 17), (2, 17), (1, 2, 17)])


class Tally(ms.Processor[str, str, str, int]):
    """Counts per key in two stores, and forwards both numbers."""

    def init(self, context: ms.ProcessorContext[str, int]) -> None:
        self._context = context
        self._tally, self._recent = context.state_store("tally"), context.state_store("recent")

    def process(self, record: ms.Record[str, str]) -> None:
        if record.key is None:
            return
        counts = [(store.get(record.key) or 0) + 1 for store in (self._tally, self._recent)]
        for store, count in zip((self._tally, self._recent), counts):
            store.put(record.key, count)
        self._context.forward(record.with_value(1000 * counts[0] + counts[1]))


def counts(builder: ms.StreamsBuilder) -> None:
    table = builder.stream("a").group_by_key().count(store="counts")
    table.to_stream().to("out", value=ms.serdes.int64)
    builder.stream("b").join(table, lambda value, count: f"{value}{count}").to("joined")


def tables(builder: ms.StreamsBuilder) -> None:
    left, right = builder.table("a", store="left"), builder.table("b", store="right")
    left.outer_join(right, lambda first, second: f"{first}+{second}", store="both").to_stream().to("out")


def suppressed_windows(builder: ms.StreamsBuilder) -> None:
    words = builder.stream("a").group_by_key()
    windowed = words.windowed_by(ms.TumblingWindows(50, grace=20)).count(store="windows")
    delayed = windowed.suppress(ms.Suppressed.until_time_limit(40))
    delayed.to_stream(lambda window, count: f"{window.key}@{window.start}").to("out", value=ms.serdes.int64)


def processors(builder: ms.StreamsBuilder) -> None:
    string, int64 = ms.serdes.string, ms.serdes.int64
    builder.add_state_store(ms.stores.key_value("tally", string, int64))
    builder.add_state_store(ms.stores.key_value("recent", string, int64, ttl=60))
    tallied = builder.stream("a").process(Tally, stores=["tally", "recent"], key_local=True)
    tallied.to("out", value=int64)


def processors_of_values(builder: ms.StreamsBuilder) -> None:
    string, int64 = ms.serdes.string, ms.serdes.int64
    for store in ("tally", "recent"):
        builder.add_state_store(ms.stores.key_value(store, string, int64))
    tallied = builder.stream("a").process_values(Tally, stores=["tally", "recent"], key_local=True)
    tallied.to("out", value=int64)


def windows(builder: ms.StreamsBuilder) -> None:
    words = builder.stream("a").group_by_key()
    windowed = words.windowed_by(ms.TumblingWindows(50, grace=20)).count(store="windows")
    windowed.to_stream(lambda window, count: f"{window.key}@{window.start}").to("out", value=ms.serdes.int64)
    closed = windowed.suppress(ms.Suppressed.until_window_closes())
    closed.to_stream(lambda window, count: f"{window.key}@{window.start}").to("joined", value=ms.serdes.int64)


def windows_on_close(builder: ms.StreamsBuilder) -> None:
    words = builder.stream("a").group_by_key()
    emit = ms.EmitStrategy.on_window_close()
    windowed = words.windowed_by(ms.HoppingWindows(50, advance=20, grace=10), emit=emit).count(store="hops")
    windowed.to_stream(lambda window, count: f"{window.key}@{window.start}").to("out", value=ms.serdes.int64)


def sessions(builder: ms.StreamsBuilder) -> None:
    words = builder.stream("a").group_by_key()
    for store, emit, out in (
        ("visits", ms.EmitStrategy(at_close=False), "out"),
        ("ended", ms.EmitStrategy.on_window_close(), "joined"),
    ):
        visits = words.windowed_by(ms.SessionWindows(20, grace=10), emit=emit).count(store=store)
        named = visits.to_stream(lambda window, count: f"{window.key}@{window.start}-{window.end}")
        named.to(out, value=ms.serdes.int64)


def regrouped(builder: ms.StreamsBuilder) -> None:
    words = builder.stream("a").filter(lambda key, value: value is not None)
    counted = words.group_by(lambda key, value: value).count(store="by-value")
    counted.to_stream().to("out", value=ms.serdes.int64)


class Run:
    """Runs records through a topology, with the results of each key in their order."""

    def __init__(self, topology: ms.Topology, commit_every: int, parallelism: int, **settings: Any) -> None:
        self._topology = topology
        self._driver = TopologyTestDriver(
            topology, commit_every=commit_every, parallelism=parallelism, **settings
        )
        self.results: dict[Any, list[Any]] = defaultdict(list)

    def pipe(self, given: list[Row]) -> None:
        read = {topic for sub in self._driver._runner.plan.subtopologies for topic in sub.source_topics}
        for topic, key, value, time in given:
            if topic in read:
                self._driver.pipe(topic, key, value, timestamp=time)

    def restart(self, parallelism: int) -> None:
        self._driver.commit()
        self._read()
        self._driver = self._driver.edited(self._topology, parallelism=parallelism)

    def end(self) -> tuple[dict[Any, list[Any]], list[str]]:
        """Return the results of each key, and the entries of all stores."""
        self._driver.commit()
        self._read()
        entries = sorted(
            repr((name, entry))
            for each in self._driver._runner.tasks.values()
            for name in each.task.stores
            for entry in getattr(each.store(name), "all", list)()
        )
        self._driver.close()
        return dict(self.results), entries

    def _read(self) -> None:
        for topic in ("out", "joined"):
            for record in self._driver.read(topic) if topic in self._driver._runner.sent else ():
                self.results[topic, record.key].append((record.value, record.timestamp))


@pytest.mark.parametrize(
    "build",
    [
        counts,
        tables,
        suppressed_windows,
        processors,
        processors_of_values,
        windows,
        windows_on_close,
        sessions,
        regrouped,
    ],
)
@settings(max_examples=settings().max_examples // 4)  # each example runs about a hundred tasks
@given(parts=st.lists(rows, min_size=3, max_size=3), workers=workers, commit_every=st.sampled_from([1, 7]))
def test_divided_tasks_continue_like_undivided_tasks(
    build: Any, parts: list[list[Row]], workers: tuple[int, ...], commit_every: int
) -> None:
    builder = ms.StreamsBuilder()
    build(builder)
    topology, ends = builder.build(), []
    # With caches, the other keys of a task influence which updates are merged before a row is due.
    caches = {"statestore_cache_max_bytes": 0} if build is suppressed_windows else {}
    for parallelisms in (workers, (workers[0],)):
        run = Run(topology, commit_every, parallelisms[0], **caches)
        for number, part in enumerate(parts):
            if number:
                run.restart(parallelisms[min(number, len(parallelisms) - 1)])
            run.pipe(part)
        ends.append(run.end())
    assert ends[0] == ends[1]
