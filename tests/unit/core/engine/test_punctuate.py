"""Punctuation: the grid of due times, and schedules that outlive the task that created them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.punctuate import Punctuations, Schedule
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.model.errors import ProcessingError
from unit.helpers import Host, processing, processor_topology, values

EVERY_TEN = 10


class Ticking(ms.Processor):
    """Forwards a line per punctuation; subclasses say how it is scheduled."""

    def process(self, record: ms.Record) -> None:
        pass

    def tick(self, now_ms: int) -> None:
        self.context.forward(ms.Record(None, f"tick {now_ms}", max(now_ms, 0)))


def scheduled(
    kind: ms.PunctuationType, start_time: int | None = None, interval: Any = EVERY_TEN
) -> ms.Topology:
    class Scheduled(Ticking):
        def init(self, context: ms.ProcessorContext) -> None:
            super().init(context)
            context.schedule(interval, kind, self.tick, start_time=start_time)

    return processor_topology(Scheduled)


def rows_at(*timestamps: int) -> list[tuple[None, str, int]]:
    return [(None, "", timestamp) for timestamp in timestamps]


class TestStreamTimePunctuation:
    @pytest.mark.parametrize(
        ("timestamps", "ticks"),
        [
            ([0], ["tick 0"]),
            ([3], ["tick 3"]),  # the grid begins at 0, so the first record is always due
            ([3, 9], ["tick 3"]),
            ([3, 10], ["tick 3", "tick 10"]),
            ([3, 47], ["tick 3", "tick 47"]),  # many grid points passed, one call
            ([3, 47, 49, 50], ["tick 3", "tick 47", "tick 50"]),  # and back on the grid
            ([12, 5, 19, 20], ["tick 12", "tick 20"]),  # a late record does not move the grid
        ],
    )
    def test_follows_a_grid_from_zero(self, timestamps: list[int], ticks: list[str]) -> None:
        assert values(Host(scheduled(ms.stream_time)).run("in", *rows_at(*timestamps))) == ticks

    def test_begins_at_its_start_time(self) -> None:
        host = Host(scheduled(ms.stream_time, start_time=25))
        assert values(host.run("in", *rows_at(0, 24, 25, 34, 35))) == ["tick 25", "tick 35"]

    def test_accepts_a_timedelta(self) -> None:
        host = Host(scheduled(ms.stream_time, interval=timedelta(seconds=1)))
        assert values(host.run("in", *rows_at(1, 999, 1000))) == ["tick 1", "tick 1000"]

    def test_runs_after_the_record_that_made_it_due(self) -> None:
        class Both(Ticking):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                context.schedule(EVERY_TEN, ms.stream_time, self.tick)

            def process(self, record: ms.Record) -> None:
                self.context.forward(record.with_value(f"record {record.timestamp}"))

        host = Host(processor_topology(Both))
        assert values(host.run("in", *rows_at(1, 2, 10))) == [
            "record 1",
            "tick 1",
            "record 2",
            "record 10",
            "tick 10",
        ]

    def test_does_not_depend_on_the_wall_clock(self) -> None:
        host = Host(scheduled(ms.stream_time))
        assert values(host.step(now_ms=1_000_000)) == []
        assert host.step().wake_at_ms is None

    @pytest.mark.parametrize("batch", [1, 2, 6])
    def test_does_not_depend_on_batch_boundaries(self, batch: int) -> None:
        host, rows, ticks = Host(scheduled(ms.stream_time)), rows_at(4, 11, 12, 29, 30, 31), []
        for first in range(0, len(rows), batch):
            ticks.extend(values(host.run("in", *rows[first : first + batch])))
            host.restart()
        assert ticks == ["tick 4", "tick 11", "tick 29", "tick 30"]


class TestWallClockPunctuation:
    def test_begins_one_interval_from_now(self) -> None:
        host = Host(scheduled(ms.wall_clock), now_ms=1000)
        assert host.step(now_ms=1000).wake_at_ms == 1010
        assert values(host.step(now_ms=1009)) == []
        outcome = host.step(now_ms=1010)
        assert (values(outcome), outcome.wake_at_ms, outcome.metrics.punctuated) == (["tick 1010"], 1020, 1)

    def test_runs_once_for_several_passed_grid_points(self) -> None:
        host = Host(scheduled(ms.wall_clock), now_ms=1000)
        assert values(host.step(now_ms=1047)) == ["tick 1047"]
        assert values(host.step(now_ms=1049)) == []
        assert values(host.step(now_ms=1050)) == ["tick 1050"]

    def test_is_rescheduled_when_the_clock_moves_back(self) -> None:
        host = Host(scheduled(ms.wall_clock), now_ms=1003)
        assert values(host.step(now_ms=1_000_013)) == ["tick 1000013"]
        host.restart()
        outcome = host.step(now_ms=2000)
        assert (values(outcome), outcome.wake_at_ms) == ([], 2003)
        assert values(host.step(now_ms=2003)) == ["tick 2003"]

    def test_is_not_repeated_when_the_clock_moves_back_a_little(self) -> None:
        host = Host(scheduled(ms.wall_clock), now_ms=1000)
        assert values(host.step(now_ms=1010)) == ["tick 1010"]
        assert [values(host.step(now_ms=now)) for now in (1001, 1010, 1020)] == [[], [], ["tick 1020"]]

    def test_restored_from_an_old_snapshot_is_rescheduled_when_the_clock_moves_back(self) -> None:
        host = Host(scheduled(ms.wall_clock), now_ms=1003)
        host.step(now_ms=1_000_013)
        host.restart(without_chosen)
        assert host.step(now_ms=2000).wake_at_ms == 2003

    def test_waits_for_a_start_time_far_ahead(self) -> None:
        host = Host(scheduled(ms.wall_clock, start_time=9005), now_ms=1000)
        for now, expected in ((1001, []), (2000, []), (1500, []), (9005, ["tick 9005"])):
            host.restart()
            assert values(host.step(now_ms=now)) == expected

    def test_begins_at_its_start_time(self) -> None:
        host = Host(scheduled(ms.wall_clock, start_time=1005), now_ms=1000)
        assert [values(host.step(now_ms=now)) for now in (1004, 1005, 1014, 1015)] == [
            [],
            ["tick 1005"],
            [],
            ["tick 1015"],
        ]

    def test_runs_after_the_records_of_the_step(self) -> None:
        class Both(Ticking):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                context.schedule(EVERY_TEN, ms.wall_clock, self.tick)

            def process(self, record: ms.Record) -> None:
                self.context.forward(record)

        host = Host(processor_topology(Both))
        host.feed("in", [(None, "record", 5)])
        assert values(host.step(now_ms=10)) == ["record", "tick 10"]

    def test_does_not_depend_on_record_timestamps(self) -> None:
        host = Host(scheduled(ms.wall_clock))
        assert values(host.run("in", *rows_at(5_000_000))) == []


class TestSeveralSchedules:
    def test_are_called_in_the_order_of_their_due_times(self) -> None:
        class Several(Ticking):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                for name, start in (("late", 7), ("early", 3), ("middle", 5)):
                    context.schedule(100, ms.wall_clock, self.callback_for(name), start_time=start)

            def callback_for(self, name: str) -> Any:
                return lambda now: self.context.forward(ms.Record(None, name, 0))

        assert values(Host(processor_topology(Several)).step(now_ms=10)) == ["early", "middle", "late"]

    def test_keep_their_own_due_times_after_a_restart(self) -> None:
        class Several(Ticking):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                for interval in (10, 15):
                    context.schedule(interval, ms.wall_clock, self.callback_for(interval))

            def callback_for(self, interval: int) -> Any:
                return lambda now: self.context.forward(ms.Record(None, f"{interval} at {now}", 0))

        host, lines = Host(processor_topology(Several)), []
        for now in range(0, 41, 5):
            lines.extend(values(host.step(now_ms=now)))
            host.restart()
        assert lines == [
            "10 at 10",
            "15 at 15",
            "10 at 20",
            "10 at 30",
            "15 at 30",
            "10 at 40",
        ]


class Switching(Ticking):
    """Starts, cancels or counts schedules of a method, as the values of records request."""

    def process(self, record: ms.Record) -> None:
        if record.value == "start":
            self.context.schedule(EVERY_TEN, ms.wall_clock, self.tick)
        elif record.value == "start stream":
            self.context.schedule(EVERY_TEN, ms.stream_time, self.tick)
        elif record.value == "stop":
            for schedule in self.context.scheduled(self.tick):
                schedule.cancel()
        elif record.value == "count":
            self.context.forward(record.with_value(str(len(self.context.scheduled(self.tick)))))


class TestSchedulesMadeOutsideInit:
    def test_outlive_the_task(self) -> None:
        host = Host(processor_topology(Switching))
        host.run("in", (None, "start", 0))
        for now, expected in ((9, []), (10, ["tick 10"]), (19, []), (21, ["tick 21"]), (30, ["tick 30"])):
            host.restart()
            outcome = host.step(now_ms=now)
            assert values(outcome) == expected
        assert outcome.wake_at_ms == 40

    def test_can_be_found_and_cancelled_in_a_later_task(self) -> None:
        host = Host(processor_topology(Switching))
        host.run("in", (None, "start", 0), (None, "start", 0))
        host.restart()
        assert values(host.run("in", (None, "count", 0))) == ["2"]
        host.run("in", (None, "stop", 0))
        assert values(host.run("in", (None, "count", 0))) == ["0"]
        host.restart()
        assert values(host.run("in", (None, "count", 0))) == ["0"]
        assert values(host.step(now_ms=50)) == []
        assert host.task.snapshot().schedules == ()

    def test_must_call_a_method_of_the_processor(self) -> None:
        supplier = processing(lambda context, record: context.schedule(5, ms.wall_clock, lambda now: None))
        with pytest.raises(
            ProcessingError,
            match=r"processor 'worker' schedules <.*> outside init\(\)\. .* in init\(\), or pass",
        ):
            Host(processor_topology(supplier)).run("in", (None, "", 0))

    @pytest.mark.parametrize("batch", [1, 2, 5])
    def test_of_stream_time_do_not_depend_on_batch_boundaries(self, batch: int) -> None:
        """Kafka Streams checks for due schedules after each record, including schedules that the record itself created."""
        rows = [(None, "start stream", 3), *rows_at(4, 12, 20, 21)]
        host, ticks = Host(processor_topology(Switching)), []
        for first in range(0, len(rows), batch):
            ticks.extend(values(host.run("in", *rows[first : first + batch])))
        assert ticks == ["tick 3", "tick 12", "tick 20"]

    def test_by_a_stream_time_punctuator_are_due_at_once(self) -> None:
        """Kafka Streams' PunctuationQueue calls schedules while its head is due, including schedules that such a call adds."""

        class Chained(Ticking):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                context.schedule(100, ms.stream_time, self.begin)

            def begin(self, now_ms: int) -> None:
                self.context.forward(ms.Record(None, f"begin {now_ms}", 0))
                self.context.schedule(EVERY_TEN, ms.stream_time, self.tick)

        assert values(Host(processor_topology(Chained)).run("in", *rows_at(5, 10))) == [
            "begin 5",
            "tick 5",
            "tick 10",
        ]

    def test_are_dropped_when_their_method_no_longer_exists(self) -> None:
        host = Host(processor_topology(Switching))
        host.run("in", (None, "start", 0))
        changed = Host(processor_topology(processing(lambda context, record: None)))
        changed.sub, host.sub = host.sub, changed.sub  # the program is edited between two batches
        host.restart()
        assert (values(host.step(now_ms=100)), host.task.snapshot().schedules) == ([], ())


class TestCancelling:
    def test_a_cancelled_schedule_is_not_called(self) -> None:
        class Once(Ticking):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                self.schedule = context.schedule(EVERY_TEN, ms.stream_time, self.tick)

            def tick(self, now_ms: int) -> None:
                super().tick(now_ms)
                self.schedule.cancel()

        host = Host(processor_topology(Once))
        assert values(host.run("in", *rows_at(1, 11, 21))) == ["tick 1"]
        host.restart()  # init schedules it again, but it stays cancelled
        assert values(host.run("in", *rows_at(31))) == []

    def test_one_schedule_can_cancel_another_that_is_due_too(self) -> None:
        class Rivals(Ticking):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                context.schedule(10, ms.wall_clock, self.first)
                self.second_schedule = context.schedule(11, ms.wall_clock, self.tick)

            def first(self, now_ms: int) -> None:
                self.context.forward(ms.Record(None, "first", 0))
                self.second_schedule.cancel()

        outcome = Host(processor_topology(Rivals)).step(now_ms=20)
        assert (values(outcome), outcome.metrics.punctuated) == (["first"], 1)


class TestImpossibleSchedules:
    @pytest.mark.parametrize("interval", [0, -1, timedelta(microseconds=999)])
    def test_an_interval_is_at_least_a_millisecond(self, interval: Any) -> None:
        with pytest.raises(ProcessingError, match="a punctuation interval must be at least 1 ms, not "):
            Host(scheduled(ms.stream_time, interval=interval))

    def test_a_start_time_is_not_negative(self) -> None:
        with pytest.raises(ProcessingError, match="a punctuation's start time must not be negative: -1"):
            Host(scheduled(ms.wall_clock, start_time=-1))


class TestChangedPrograms:
    def test_a_schedule_with_a_new_interval_starts_again(self) -> None:
        host = Host(scheduled(ms.wall_clock))
        host.step(now_ms=5)
        host.sub = Host(scheduled(ms.wall_clock, interval=20)).sub
        host.restart()
        assert host.step(now_ms=5).wake_at_ms == 25


def make_schedule(due_ms: int, *, cancelled: bool = False, ordinal: int | None = 0) -> Schedule:
    return Schedule("n", ordinal, None, ms.wall_clock, 10, due_ms, lambda now: None, cancelled)


def without_chosen(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot as earlier versions stored it."""
    schedules = tuple({k: v for k, v in data.items() if k != "chosen"} for data in snapshot.schedules)
    return replace(snapshot, schedules=schedules)


def test_advance_goes_to_the_first_grid_point_after_now() -> None:
    for due, now, expected in (
        (20, 20, 30),
        (20, 29, 30),
        (20, 30, 40),
        (20, 15, 30),
        (7, 107, 117),
        (7, 1006, 1007),
    ):
        schedule = make_schedule(due)
        schedule.advance(now)
        assert schedule.due_ms == expected


def test_the_next_due_time_ignores_cancelled_schedules_and_the_other_kind() -> None:
    punctuations = Punctuations()
    assert punctuations.next_due(ms.wall_clock) is None
    for schedule in (make_schedule(5, cancelled=True), make_schedule(9), make_schedule(7)):
        punctuations.add(schedule)
    assert punctuations.next_due(ms.wall_clock) == 7
    assert punctuations.next_due(ms.stream_time) is None
    assert punctuations.first_due(ms.wall_clock, 6) is None
    first = punctuations.first_due(ms.wall_clock, 9)
    assert first is not None
    assert first.due_ms == 7


def test_only_schedules_of_init_are_remembered_when_cancelled() -> None:
    punctuations = Punctuations()
    punctuations.add(make_schedule(1, cancelled=True, ordinal=0))
    punctuations.add(make_schedule(2, cancelled=True, ordinal=None))
    punctuations.add(make_schedule(3, ordinal=None))
    assert [data["due_ms"] for data in punctuations.to_data()] == [1, 3]
    assert len(punctuations.schedules) == 2
