"""Windows and suppressed updates of an idle input close by the wall clock, independently of how often a task is woken."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.asynchronous.call import Done, Skipped
from millstream.core.engine.records.readiness import InputFacts
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.model.errors import TopologyError
from millstream.core.model.ids import TopicPartition
from millstream.drivers.spark.executor.snapshots import snapshot_from_json, snapshot_to_json
from unit.helpers import Host, sent

IN = TopicPartition("in", 0)
TUMBLING = ms.TumblingWindows(10, grace=5)
Before = Callable[[ms.KStream[Any, Any]], ms.KStream[Any, Any]]
Finish = Callable[[ms.KGroupedStream[Any, Any]], ms.KTable[Any, Any]]


def topology(finish: Finish, before: Before = lambda stream: stream) -> ms.Topology:
    builder = ms.StreamsBuilder()
    table = finish(before(builder.stream("in")).group_by_key())
    table.to_stream(lambda w, _: f"{w.key}@{w.start}-{w.end}").map_values(str).to("out")
    return builder.build()


def on_close(windows: Any, idle: int = 100, **options: Any) -> ms.Topology:
    emit = ms.EmitStrategy.on_window_close(close_idle_after=idle)
    return topology(lambda grouped: grouped.windowed_by(windows, emit=emit).count(store="w"), **options)


def final(windows: Any, idle: int = 100, **options: Any) -> ms.Topology:
    until = ms.Suppressed.until_window_closes(close_idle_after=idle)
    return topology(
        lambda grouped: grouped.windowed_by(windows).count(store="w").suppress(until, store="held"), **options
    )


def run(host: Host, now_ms: int, *rows: Any) -> Outcome:
    host.feed("in", rows)
    return host.step(now_ms)


@pytest.mark.parametrize("make", [on_close, final])
class TestWindows:
    def test_close_even_if_the_wall_clock_moved_back(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING))
        run(host, 1_000_000, ("a", "x", 3))
        assert host.step(1000).wake_at_ms == 1100
        assert sent(host.step(1100)) == [("a@0-10", "1", 3)]

    def test_close_after_the_idle_time(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING))
        assert run(host, 1000, ("a", "x", 3), ("b", "x", 4)).wake_at_ms == 1100
        assert sent(host.step(1099)) == []
        outcome = host.step(1100)
        assert sent(outcome) == [("a@0-10", "1", 3), ("b@0-10", "1", 4)]
        assert outcome.wake_at_ms is None
        assert outcome.stream_time_ms == 4

    @pytest.mark.parametrize("before_the_last", [0, 1, 30, 99])
    @pytest.mark.parametrize(
        "windows", [TUMBLING, ms.SlidingWindows(10, grace=5), ms.SessionWindows(10, grace=5)]
    )
    def test_the_idle_time_does_not_advance_past_the_largest_timestamp(
        self, make: Callable[..., ms.Topology], windows: Any, before_the_last: int
    ) -> None:
        """Stream time would advance by 100 ms. Windows that would close after the largest timestamp never close."""
        host, last = Host(make(windows)), (1 << 63) - 1
        run(host, 1000, ("a", "x", last - before_the_last))
        assert len(sent(host.step(1100))) == (before_the_last >= 30)
        assert sent(host.step(9000)) == []

    def test_do_not_close_before_their_end_and_grace(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(ms.TumblingWindows(1000, grace=500)))
        assert run(host, 7000, ("a", "x", 300)).wake_at_ms == 8200
        assert sent(host.step(8199)) == []
        assert sent(host.step(8200)) == [("a@0-1000", "1", 300)]

    def test_close_each_at_its_own_time(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(ms.TumblingWindows(1000, grace=500)))
        assert run(host, 7000, ("a", "x", 300), ("a", "x", 1300)).wake_at_ms == 7200
        assert host.step(7200).wake_at_ms == 8200
        assert sent(host.step(8200)) == [("a@1000-2000", "1", 1300)]

    def test_late_records_are_dropped_and_counted(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING))
        run(host, 1000, ("a", "x", 3))
        host.step(1100)
        outcome = run(host, 1101, ("b", "x", 9), ("b", "x", 10))
        assert outcome.metrics.dropped == {"late for a window": 1}
        assert sent(host.step(1201)) == [("b@10-20", "1", 10)]

    def test_stay_closed_after_a_restart(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING))
        run(host, 1000, ("a", "x", 3))
        host.restart()
        assert sent(host.step(1100)) == [("a@0-10", "1", 3)]
        host.restart()
        assert run(host, 1101, ("b", "x", 9)).metrics.dropped == {"late for a window": 1}

    def test_a_record_restarts_the_idle_time(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING))
        run(host, 1000, ("a", "x", 3))
        assert run(host, 1099, ("a", "x", 2)).wake_at_ms == 1199
        assert sent(host.step(1198)) == []
        assert sent(host.step(1199)) == [("a@0-10", "2", 3)]

    def test_a_record_that_arrives_with_the_step_is_in_time(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING))
        run(host, 1000, ("a", "x", 3))
        assert run(host, 5000, ("a", "x", 4)).wake_at_ms == 5100
        assert sent(host.step(5100)) == [("a@0-10", "2", 4)]

    def test_do_not_close_while_fed_records_are_unprocessed(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING))
        run(host, 1000, ("a", "x", 3))
        host.feed("in", [("a", "x", 4), ("a", "x", 5)])
        assert sent(host.step(1200, budget=0)) == []
        assert sent(host.step(1300, budget=1)) == []
        assert sent(host.step(1300)) == []
        assert sent(host.step(1400)) == [("a@0-10", "3", 5)]

    @pytest.mark.parametrize(
        "facts",
        [
            InputFacts((IN,), lag={IN: 1}),
            InputFacts((IN,), unknown=True),
            InputFacts((IN,), paused=frozenset({"in"})),
        ],
        ids=["lag", "no broker", "paused"],
    )
    def test_do_not_close_while_input_cannot_be_read(
        self, make: Callable[..., ms.Topology], facts: InputFacts
    ) -> None:
        host = Host(make(TUMBLING))
        run(host, 1000, ("a", "x", 3))
        host.task.inform(facts)
        assert sent(host.step(5000)) == []
        host.task.inform(InputFacts((IN,)))
        assert sent(host.step(5099)) == []
        assert sent(host.step(5100)) == [("a@0-10", "1", 3)]

    def test_do_not_close_while_records_are_in_flight(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(TUMBLING, before=lambda stream: stream.map_values_async(str.upper)))
        first, second = run(host, 1000, ("a", "x", 3), ("b", "y", 4)).issue
        host.task.done(first.ticket, Done("X"))
        host.step(1010)
        host.restart()
        outcome = host.step(1200)
        assert (sent(outcome), outcome.wake_at_ms) == ([], None)
        host.task.done(second.ticket, Done("Y"))
        outcome = host.step(1500)
        assert (sent(outcome), outcome.metrics.dropped, outcome.wake_at_ms) == ([], {}, 1600)
        assert sent(host.step(1600)) == [("a@0-10", "1", 3), ("b@0-10", "1", 4)]

    def test_the_idle_time_begins_after_a_call_whose_record_is_skipped(
        self, make: Callable[..., ms.Topology]
    ) -> None:
        host = Host(make(TUMBLING, before=lambda stream: stream.map_values_async(str.upper)))
        first, second = run(host, 1000, ("a", "x", 3), ("b", "y", 4)).issue
        host.task.done(first.ticket, Done("X"))
        host.step(1010)
        host.task.done(second.ticket, Skipped())
        outcome = host.step(1500)
        assert (sent(outcome), outcome.wake_at_ms) == ([], 1600)
        assert sent(host.step(1600)) == [("a@0-10", "1", 3)]

    def test_a_task_without_input_closes_nothing(self, make: Callable[..., ms.Topology]) -> None:
        assert Host(make(TUMBLING)).step(10_000).wake_at_ms is None

    def test_hopping_windows_close_one_after_the_other(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(ms.HoppingWindows(200, advance=100, grace=0)))
        run(host, 1000, ("a", "x", 150))
        assert sent(host.step(1100)) == [("a@0-200", "1", 150)]
        assert sent(host.step(1150)) == [("a@100-300", "1", 150)]

    def test_sliding_windows_close_after_their_end_and_grace(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(ms.SlidingWindows(10, grace=5)))
        run(host, 1000, ("a", "x", 20))
        assert sent(host.step(1100)) == [("a@10-20", "1", 20)]
        assert run(host, 1101, ("b", "x", 20)).metrics.dropped == {"late for a window": 1}
        assert run(host, 1102, ("b", "x", 21)).metrics.dropped == {}
        assert sent(host.step(1202)) == [("b@11-21", "1", 21)]

    def test_sessions_close_after_their_gap_and_grace(self, make: Callable[..., ms.Topology]) -> None:
        host = Host(make(ms.SessionWindows(200, grace=50)))
        run(host, 1000, ("a", "x", 10), ("a", "x", 20))
        assert sent(host.step(1249)) == []
        assert sent(host.step(1251)) == [("a@10-20", "2", 20)]
        assert run(host, 1252, ("b", "x", 10)).metrics.dropped == {"late for a session": 1}
        assert sent(run(host, 1253, ("a", "x", 25), ("a", "x", 500))) == [("a@25-25", "1", 25)]


def test_suppressed_updates_of_any_table_are_sent() -> None:
    builder = ms.StreamsBuilder()
    until = ms.Suppressed.until_time_limit(30, close_idle_after=100)
    builder.table("in", store="t").suppress(until, store="held").to_stream().to("out")
    host = Host(builder.build())
    assert run(host, 1000, ("a", "1", 3), ("b", "1", 10), ("a", "2", 9)).wake_at_ms == 1100
    assert sent(host.step(1100)) == [("a", "2", 9), ("b", "1", 10)]
    assert sent(run(host, 1101, ("a", "3", 10), ("a", "4", 11))) == [("a", "3", 10)]


def test_idle_windows_do_not_close_without_close_idle_after() -> None:
    host = Host(
        topology(lambda grouped: grouped.windowed_by(TUMBLING, emit=ms.on_window_close).count(store="w"))
    )
    assert run(host, 1000, ("a", "x", 3)).wake_at_ms is None
    assert sent(host.step(1_000_000)) == []


def test_close_idle_after_requires_the_windows_in_the_same_task() -> None:
    counts = ms.StreamsBuilder().stream("in").group_by_key().windowed_by(TUMBLING).count(store="w")
    table = counts.to_stream().repartition(name="moved").to_table(store="t")
    assert table.suppress(ms.Suppressed.until_window_closes(), store="held")
    with pytest.raises(
        TopologyError, match="close_idle_after needs the windowed aggregation in the same task"
    ):
        table.suppress(ms.Suppressed.until_window_closes(close_idle_after=1))


def through_json(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot as it is read back from Spark's checkpoint."""
    read = snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot))))
    assert read is not None
    return read


Event = tuple[int, tuple[str, str, int] | None]
"""A time of the wall clock, and the record that arrives then; None wakes the task for another reason."""


def run_events(
    make: Callable[..., ms.Topology], windows: Any, events: list[Event], *, restarts: bool
) -> tuple[Any, int]:
    """Return the results and the number of drops of a task that wakes at these events and at the times that it requests."""
    host, given, dropped = Host(make(windows, idle=20)), [], 0
    wakes: list[int] = []

    def step(now: int, *rows: Any) -> None:
        nonlocal dropped
        outcome = run(host, now, *rows)
        given.extend(sent(outcome))
        dropped += sum(outcome.metrics.dropped.values())
        wakes[:] = [] if outcome.wake_at_ms is None else [outcome.wake_at_ms]
        if restarts:
            host.restart(through_json)

    for now, row in events:
        while wakes and wakes[0] < now:
            step(heapq.heappop(wakes))
        step(now, *([] if row is None else [row]))
    while wakes:
        step(heapq.heappop(wakes))
    return given, dropped


WINDOWS = [
    TUMBLING,
    ms.HoppingWindows(10, advance=5, grace=2),
    ms.SlidingWindows(6, grace=3),
    ms.SessionWindows(6, grace=3),
]


@pytest.mark.parametrize("make", [on_close, final])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=8
    ),
    extra_times=st.lists(st.integers(0, 200), max_size=8),
    windows=st.sampled_from(WINDOWS),
)
def test_additional_wake_ups_do_not_change_the_results(
    make: Callable[..., ms.Topology], rows: list[tuple[int, str, int]], extra_times: list[int], windows: Any
) -> None:
    now, events = 0, list[Event]()
    for wait, key, timestamp in rows:
        now += wait + 1
        events.append((now, (key, "x", timestamp)))
    times = {now for now, _ in events}
    more = sorted([*events, *((now, None) for now in set(extra_times) - times)], key=lambda event: event[0])
    once = run_events(make, windows, events, restarts=False)
    assert run_events(make, windows, more, restarts=True) == once
    if (
        make is on_close
    ):  # suppress sends a session shortly before its aggregation drops late records, as in Kafka Streams
        assert len({window for window, *_ in once[0]}) == len(once[0])


class Model:
    """A model of tumbling windows with an idle time: a dict from the start of each open window to its counts."""

    def __init__(self, idle: int, *, late_is_input: bool) -> None:
        self.late_is_input = late_is_input
        self.idle, self.time, self.last, self.base, self.late = idle, -1, 0, -1, 0
        self.open: dict[int, dict[str, tuple[int, int]]] = {}
        self.given: list[tuple[str, str, int]] = []

    def pause(self, until: int) -> None:
        """Close the windows that close before this time of the wall clock."""
        while self.open:
            closes = min(self.open) + 15
            if self.last + max(self.idle, closes - self.base) >= until:
                break
            self.advance(closes)

    def record(self, now: int, key: str, timestamp: int) -> None:
        self.pause(now)
        self.advance(timestamp)
        start = timestamp - timestamp % 10
        if start + 15 <= self.time:
            self.late += 1
            if not self.late_is_input:
                return
        else:
            count, latest = self.open.setdefault(start, {}).get(key, (0, -1))
            self.open[start][key] = (count + 1, max(latest, timestamp))
        self.last, self.base = now, self.time

    def advance(self, time: int) -> None:
        self.time = max(self.time, time)
        for start in sorted(start for start in self.open if start + 15 <= self.time):
            for key, (count, latest) in sorted(self.open.pop(start).items()):
                self.given.append((f"{key}@{start}-{start + 10}", str(count), latest))


@pytest.mark.parametrize("make", [on_close, final])
@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.sampled_from("ab"), st.integers(0, 60)), max_size=12),
    restarts=st.booleans(),
)
def test_idle_windows_have_the_same_results_as_a_model_of_open_windows(
    make: Callable[..., ms.Topology], rows: list[tuple[int, str, int]], restarts: bool
) -> None:
    # A late record reaches the aggregation, but not the operators downstream of it.
    now, model, events = 0, Model(20, late_is_input=make is on_close), list[Event]()
    for wait, key, timestamp in rows:
        now += wait
        events.append((now, (key, "x", timestamp)))
        model.record(now, key, timestamp)
    model.pause(1_000_000)
    assert run_events(make, TUMBLING, events, restarts=restarts) == (model.given, model.late)
