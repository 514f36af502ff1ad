"""Key ranges: stream joins, windows and versioned joins have the results and stores of one task per partition."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import TopologyTestDriver

Row = tuple[str, str | None, str | None, int]
"""Topic, key, value and timestamp of a record."""

rows = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.none() | st.sampled_from("abcdefgh"),
        st.none() | st.sampled_from("xyz"),
        st.integers(0, 80),
    ),
    max_size=40,
)
EXPIRED: list[Row] = [
    ("b", "a", "x", 50),
    ("b", "a", "y", 60),
    ("b", "b", "z", 90),
    ("b", "b", "z", 200),
    ("a", "c", "x", 100),
    ("a", "a", "x", 55),
]
"""When the last record is processed, the record of key b at 90 has expired those of key a in topic b; the one at 200 comes later."""

durations = st.integers(0, 20)
windows = st.builds(ms.JoinWindows, durations, durations, durations)
commits = st.sampled_from([1, 3, 50])
fewer = settings(max_examples=settings().max_examples // 2)
"""For tests of several topologies, which have enough examples in all of them together."""


class Run:
    """Runs records through a topology, with the results of each key in their order."""

    def __init__(self, topology: ms.Topology, **settings: Any) -> None:
        self._topology = topology
        self._driver = TopologyTestDriver(topology, statestore_cache_max_bytes=0, **settings)
        self._dropped = Counter[str]()
        self.results: dict[Any, list[Any]] = defaultdict(list)

    def pipe(self, given: list[Row]) -> None:
        for topic, key, value, time in given:
            self._driver.pipe(topic, key, value, timestamp=time)

    def restart(self) -> None:
        """Continue in new tasks with the snapshots of the old ones."""
        self._driver.commit()
        self._read()
        self._driver = self._driver.edited(self._topology)

    def end(self) -> tuple[dict[Any, list[Any]], list[str], dict[str, int]]:
        """Return the results of each key, the entries of all stores, and what was dropped."""
        self._driver.commit()
        self._driver.advance_wall_clock(10_000)
        self._read()
        tasks = self._driver._runner.tasks.values()
        entries = sorted(
            repr((name, entry))
            for each in tasks
            for name in each.task.stores
            for entry in getattr(each.store(name), "all", list)()
        )
        self._driver.close()
        return dict(self.results), entries, dict(self._dropped)

    def _read(self) -> None:
        self._dropped.update(self._driver.dropped())
        for topic in ("out", "late"):
            for record in self._driver.read(topic) if topic in self._driver._runner.sent else ():
                key = record.key.key if isinstance(record.key, ms.Windowed) else record.key
                self.results[topic, key].append((record.key, record.value, record.timestamp))


def outcome(topology: ms.Topology, given: list[Row], commit_every: int, parallelism: int) -> Any:
    """Run records; return the results of each key in their order, the entries of all stores, and what was dropped."""
    run = Run(topology, commit_every=commit_every, parallelism=parallelism)
    run.pipe(given)
    return run.end()


def check(topology: ms.Topology, given: list[Row], commit_every: int) -> None:
    assert outcome(topology, given, commit_every, 2) == outcome(topology, given, commit_every, 1)


def paired(left: str | None, right: str | None) -> str:
    return f"{left}+{right}"


def to_late(stream: ms.KStream[str, str]) -> None:
    stream.to("late")


def joined(kind: str, within: ms.JoinWindows, *, merged: bool) -> ms.Topology:
    """Join two topics; with ``merged``, also both of them with one of them."""
    builder = ms.StreamsBuilder()
    left, right = builder.stream("a"), builder.stream("b")
    if merged:
        left = left.merge(right)
    join = getattr(left, kind)
    join(right, paired, windows=within, late=to_late, other_late=to_late).to("out")
    return builder.build()


@fewer
@pytest.mark.parametrize("merged", [False, True], ids=["two-topics", "merged"])
@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
@given(rows=rows, within=windows, commit_every=commits)
@example(rows=EXPIRED, within=ms.JoinWindows(5, 5, 0), commit_every=50)
def test_stream_joins_have_the_same_results_in_key_ranges(
    kind: str, rows: list[Row], within: ms.JoinWindows, commit_every: int, merged: bool
) -> None:
    check(joined(kind, within, merged=merged), rows, commit_every)


@fewer
@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
@given(parts=st.lists(rows, min_size=1, max_size=4), within=windows, commit_every=commits)
def test_stream_joins_that_wait_for_inputs_have_the_same_results_over_restarts(
    kind: str, parts: list[list[Row]], within: ms.JoinWindows, commit_every: int
) -> None:
    topology, ends = joined(kind, within, merged=False), []
    for parallelism in (2, 1):
        run = Run(topology, commit_every=commit_every, parallelism=parallelism, max_task_idle_ms=1000)
        for number, part in enumerate(parts):
            if number:
                run.restart()
            run.pipe(part)
        ends.append(run.end())
    assert ends[0] == ends[1]


def appended(key: str, value: str | None, so_far: str) -> str:
    return so_far + (value or "-")


class Shifts(ms.Windows):
    """Windows of 10 ms and of 20 ms in turn, with 5 ms between them."""

    def __init__(self, grace: int) -> None:
        super().__init__(20, grace)

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        start = timestamp - timestamp % 40
        shifts = [(start, start + 10), (start + 15, start + 35)]
        return [each for each in shifts if each[0] <= timestamp < each[1]]


def windowed(over: Any, kind: str) -> ms.Topology:
    """Aggregate over windows: emitted at every record, at the close or suppressed, cogrouped from two topics, or the minimum."""
    builder = ms.StreamsBuilder()
    least = 3 * over.difference_ms + over.grace_ms + 1 if isinstance(over, ms.SlidingWindows) else None
    store = ms.stores.options("windows", retention=least)
    groups = [builder.stream(topic).group_by_key() for topic in "ab"]
    if kind == "cogroup":
        cogrouped = groups[0].cogroup(appended).cogroup(groups[1], appended)
        table = cogrouped.windowed_by(over, late=to_late).aggregate(str, store=store)
    else:
        builder.stream("b").to("unused")
        emit = ms.EmitStrategy.on_window_close() if kind == "at-close" else ms.EmitStrategy(at_close=False)
        grouped = groups[0].windowed_by(over, emit=emit, late=to_late)
        table = grouped.min(store=store) if kind == "min" else grouped.aggregate(str, appended, store=store)
        if kind == "suppressed":
            table = table.suppress(ms.Suppressed.until_window_closes())
    table.to_stream().to("out")
    return builder.build()


OVER = {
    "tumbling": st.builds(ms.TumblingWindows, st.integers(1, 20), grace=durations),
    "calendar": st.builds(Shifts, durations),
    "sliding": st.builds(ms.SlidingWindows, st.integers(1, 20), grace=durations),
}


KINDS = ("at-once", "at-close", "suppressed", "cogroup", "min")
REFUSED = ("calendar", "suppressed")


@fewer
@pytest.mark.parametrize(
    ("over", "kind"), [each for each in itertools.product(OVER, KINDS) if each != REFUSED]
)
@given(data=st.data(), rows=rows, commit_every=commits)
def test_windows_have_the_same_results_in_key_ranges(
    over: str, kind: str, data: st.DataObject, rows: list[Row], commit_every: int
) -> None:
    """The stores of sliding and calendar windows may show expired windows for longer; see docs/concepts/key-ranges.md."""
    topology = windowed(data.draw(OVER[over]), kind)
    (results, entries, dropped), (expected, least, expected_dropped) = (
        outcome(topology, rows, commit_every, parallelism) for parallelism in (2, 1)
    )
    assert (results, dropped) == (expected, expected_dropped)
    assert set(least) <= set(entries)
    if over == "tumbling":
        assert entries == least


def with_history(grace: int | None) -> ms.Topology:
    builder = ms.StreamsBuilder()
    table = builder.table("b", store=ms.stores.options("history", history_retention=25))
    builder.stream("a").left_join(table, paired, grace=grace).to("out")
    return builder.build()


@given(grace=st.none() | durations, rows=rows, commit_every=commits)
@example(grace=None, rows=EXPIRED, commit_every=50)
def test_joins_with_versioned_tables_have_the_same_results_in_key_ranges(
    grace: int | None, rows: list[Row], commit_every: int
) -> None:
    topology = with_history(grace)
    (results, _, dropped), (expected, _, expected_dropped) = (
        outcome(topology, rows, commit_every, parallelism) for parallelism in (2, 1)
    )
    assert (results, dropped) == (expected, expected_dropped)
