"""Aligned planning, compared with brute force and run with tasks: replays are exact, complete and within the buffer limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.engine.records.readiness import FOREVER, InputFacts
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.ports import TimedOffset
from millstream.core.runtime.alignment import Alignment, Pace, Situation, plan_alignment
from millstream.core.runtime.inputs import CoProcessed, Input
from unit.helpers import Host, forwarding, processor_topology, values

from .engines import Visits

PARTITIONS = tuple(TopicPartition(topic, 0) for topic in "abc")
GROUP = CoProcessed({TaskId(0, 0): tuple(Input(p, (p,), (p,)) for p in PARTITIONS)}, True)
UNTIMED = CoProcessed(GROUP.tasks, False)
LIMIT = 5
# Dense and in order, out of order, or mostly at one time.
TIMES = st.one_of(
    st.lists(st.integers(0, 60), max_size=60).map(sorted),
    st.lists(st.integers(0, 60), max_size=30),
    st.lists(st.sampled_from([7, 7, 7, 30]), max_size=60).map(sorted),
)
LOGS = st.fixed_dictionaries(dict.fromkeys(PARTITIONS, TIMES))


class ScanningTimeIndex:
    """A time index that looks at every record."""

    def __init__(self, logs: Mapping[TopicPartition, list[int]]) -> None:
        self.logs = logs
        self.queries = 0
        self.searched: set[TopicPartition] = set()
        """The partitions whose newest record was asked for."""

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        self.queries += 1
        first = {
            p: next((TimedOffset(offset, t) for offset, t in enumerate(self.logs[p]) if t >= time_ms), None)
            for p, time_ms in times.items()
        }
        return {p: found for p, found in first.items() if found is not None}

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TimedOffset]:
        self.queries += 1
        partitions = list(partitions)
        self.searched |= set(partitions)
        listed = {p: self.logs[p] for p in partitions if self.logs[p]}
        return {p: TimedOffset(log.index(max(log)), max(log)) for p, log in listed.items()}


def fair(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], budget: int
) -> dict[TopicPartition, int]:
    """Admit records as if no partitions were co-processed."""
    planned = dict(start)
    while budget and any(planned[p] < ends[p] for p in planned):
        for p in planned:
            if planned[p] < ends[p] and budget:
                planned[p] += 1
                budget -= 1
    return planned


def merged(logs: Mapping[TopicPartition, list[int]]) -> list[tuple[str, int]]:
    left = {p: list(times) for p, times in logs.items()}
    taken = []
    while all(left.values()):
        time_ms, p = min((times[0], p) for p, times in left.items())
        left[p].pop(0)
        taken.append((p.topic, time_ms))
    return taken


class Replay:
    """Plans and runs micro-batches until nothing more is read."""

    def __init__(
        self, logs: Mapping[TopicPartition, list[int]], group: CoProcessed, idle_ms: int, budget: int
    ) -> None:
        self.index = ScanningTimeIndex(logs)
        self.logs, self.group, self.idle_ms, self.budget = logs, group, idle_ms, budget
        named = forwarding(lambda c, r: f"{c.record_metadata.topic} {r.timestamp}")  # type: ignore[union-attr]
        self.host = Host(processor_topology(named, topics=tuple("abc")), max_task_idle_ms=idle_ms)
        self.positions: dict[TopicPartition, int] = dict.fromkeys(PARTITIONS, 0)
        self.taken: list[tuple[str, int]] = []
        self.pace: Pace | None = None
        self.outcome: Any = None
        self.enforced = 0
        self.largest = 0

    def plan(self, available: Mapping[TopicPartition, int]) -> Alignment:
        buffered = {} if self.outcome is None else {q.partition: b for q, b in self.outcome.buffered.items()}
        room = {p: max(LIMIT - (buffered[p].records if p in buffered else 0), 0) for p in PARTITIONS}
        newest = {p: b.newest_ms for p, b in buffered.items()}
        given_up = () if self.outcome is None else self.outcome.given_up
        now = Situation(
            self.positions,
            available,
            available,
            fair(self.positions, available, self.budget),
            room,
            set(buffered),
            newest,
            given_up,
            (),
            self.idle_ms > 0,
        )
        return plan_alignment(self.group, now, self.index, self.pace)

    def batch(self, available: Mapping[TopicPartition, int]) -> bool:
        """Run a batch; return whether it read or processed anything."""
        plan = self.plan(available)
        assert all(self.positions[p] <= plan.ends[p] <= available[p] for p in PARTITIONS)
        for p, to in plan.ends.items():
            self.host.feed(p.topic, [(None, "x", t) for t in self.logs[p][self.positions[p] : to]])
            if p in plan.until:
                assert to < available[p]
                assert self.logs[p][to] >= plan.until[p]
        moved = plan.ends != self.positions
        self.positions, self.pace = dict(plan.ends), plan.pace
        lag = {
            p: available[p] - position for p, position in self.positions.items() if available[p] > position
        }
        self.host.task.inform(InputFacts(PARTITIONS, lag, plan.until))
        self.outcome = self.host.step(0)
        for value in values(self.outcome):
            topic, timestamp = str(value).split()
            self.taken.append((topic, int(timestamp)))
        self.enforced += self.outcome.metrics.enforced
        self.largest = max([self.largest, *(b.records for b in self.outcome.buffered.values())])
        return moved or bool(self.outcome.metrics.processed)


def test_a_replay_is_complete_in_exact_order_and_within_the_buffer_limits() -> None:
    visits = Visits()

    @settings(max_examples=150, deadline=None)
    @given(
        LOGS, st.sampled_from([GROUP, UNTIMED]), st.sampled_from([0, FOREVER]), st.integers(3, 80), st.data()
    )
    def run(
        logs: dict[TopicPartition, list[int]], group: CoProcessed, idle_ms: int, budget: int, data: Any
    ) -> None:
        replay = Replay(logs, group, idle_ms, budget)
        whole = {p: len(log) for p, log in logs.items()}
        late = data.draw(st.booleans(), label="some records come late")
        available = {p: data.draw(st.integers(0, n)) if late else n for p, n in whole.items()}
        for _ in range(400):
            if not replay.batch(available):
                if available == whole:
                    break
                available = whole
            visits["batch"] += 1
            visits["aligned"] += replay.pace is not None
        else:
            raise AssertionError("the replay does not come to its end")
        expected = merged(logs)
        assert replay.largest <= LIMIT
        if idle_ms == FOREVER:
            assert (replay.taken, replay.enforced) == (expected, 0)
        else:
            assert late or replay.taken[: len(expected)] == expected
            assert len(replay.taken) == sum(whole.values())
        visits["buffered"] += replay.largest > 0

    run()
    visits.demand(batch=300, aligned=100, buffered=20)


def test_records_earlier_than_the_last_ones_of_a_finished_input_are_read_with_them() -> None:
    a, b, c = PARTITIONS
    logs = {a: [*[0] * 28, 1], b: [0] * 6, c: [0]}
    replay = Replay(logs, GROUP, FOREVER, 17)
    while replay.batch({p: len(log) for p, log in logs.items()}):
        pass
    assert replay.taken == merged(logs)
    assert replay.largest == 1


def test_an_out_of_order_partition_does_not_make_another_one_exceed_its_buffer() -> None:
    a, b, c = PARTITIONS
    logs: dict[TopicPartition, list[int]] = {a: [], b: [0, 0, 0, 0, 1, 0, 0, 0, 0, 0], c: [1, 0, 0, 0, 0, 0]}
    replay = Replay(logs, GROUP, 0, 6)
    for available in ({a: 0, b: 2, c: 1}, {p: len(log) for p, log in logs.items()}):
        while replay.batch(available):
            pass
    assert len(replay.taken) == 16
    assert replay.largest == 1


def test_a_plan_fills_its_batch_with_few_index_queries() -> None:
    steps = {PARTITIONS[0]: 1, PARTITIONS[1]: 1_000, PARTITIONS[2]: 50}
    logs = {p: list(range(1_000_000, 1_100_000, step)) for p, step in steps.items()}
    replay = Replay(logs, GROUP, 0, 10_000)
    available = {p: len(log) for p, log in logs.items()}
    batches = 0
    while any(available[p] > position for p, position in replay.positions.items()):
        start, queries_before = dict(replay.positions), replay.index.queries
        plan = replay.plan(available)
        count = sum(plan.ends[p] - position for p, position in start.items())
        assert 5_000 <= count <= 10_000 or sum(available.values()) - sum(start.values()) < 10_000
        assert replay.index.queries - queries_before <= (6 if batches == 0 else 2)
        replay.positions, replay.pace = dict(plan.ends), plan.pace
        batches += 1
        if plan.pace is not None and plan.ends != available:
            assert {plan.until[p] for p in PARTITIONS} == {plan.pace.time_ms}
    assert batches < 20


def test_a_partition_that_was_read_beyond_the_planned_time_is_not_waited_for() -> None:
    logs = {PARTITIONS[0]: list(range(100)), PARTITIONS[1]: [1_000, *range(100)], PARTITIONS[2]: []}
    start = {PARTITIONS[0]: 0, PARTITIONS[1]: 1, PARTITIONS[2]: 0}
    ends = {p: len(log) for p, log in logs.items()}
    now = Situation(start, ends, ends, fair(start, ends, 20))
    assert plan_alignment(GROUP, now, ScanningTimeIndex(logs)) == Alignment(now.admitted)
    with_records = replace(now, buffered={PARTITIONS[1]}, newest={PARTITIONS[1]: 1_000})
    plan = plan_alignment(GROUP, with_records, ScanningTimeIndex(logs))
    assert plan.pace is not None
    assert (plan.ends[PARTITIONS[0]] > 0, plan.ends[PARTITIONS[1]]) == (True, 1)
    time_ms = plan.pace.time_ms
    for newest, aligned in (
        ({PARTITIONS[1]: time_ms}, True),
        ({PARTITIONS[1]: time_ms - 1}, False),
        ({}, True),
    ):
        again = plan_alignment(GROUP, replace(with_records, newest=newest), ScanningTimeIndex(logs))
        assert again == (plan if aligned else Alignment(now.admitted))


FAST, SLOW = PARTITIONS[:2]
PAIR = CoProcessed({TaskId(0, 0): tuple(Input(p, (p,), (p,)) for p in (FAST, SLOW))}, True)


def beside_an_input_at_its_end(
    slow: list[int], *, read: int = 0, **given: Any
) -> tuple[Alignment, ScanningTimeIndex]:
    """Plan 100 records of one partition, one per ms and with room for 5, beside a partition of which some records have been read."""
    start, ends = {FAST: 0, SLOW: read}, {FAST: 100, SLOW: given.pop("end", len(slow))}
    index = ScanningTimeIndex({FAST: list(range(100)), SLOW: slow})
    room = given.pop("room", {FAST: 5, SLOW: 5})
    now = Situation(start, ends, ends, ends, room=room, idles=True, **given)
    return plan_alignment(PAIR, now, index), index


class TestBesideAnInputAtItsEnd:
    def test_an_earlier_partition_is_read_through_the_time_of_the_last_record_of_that_input(
        self,
    ) -> None:
        for slow in ([50], [10, 50], [50, 10]):
            plan, _ = beside_an_input_at_its_end(slow)
            assert plan == Alignment({FAST: 51, SLOW: len(slow)}, {FAST: 51})

    def test_the_last_record_may_be_a_buffered_one(self) -> None:
        plan, _ = beside_an_input_at_its_end([70, 50], read=1, buffered={SLOW}, newest={SLOW: 70})
        assert plan == Alignment({FAST: 71, SLOW: 2}, {FAST: 71})

    def test_the_index_is_not_queried_for_an_input_of_which_nothing_is_read(self) -> None:
        plan, index = beside_an_input_at_its_end([70], read=1, buffered={SLOW}, newest={SLOW: 70})
        assert (plan, index.searched) == (Alignment({FAST: 71, SLOW: 1}, {FAST: 71}), {FAST})

    def test_a_record_after_the_end_does_not_reveal_the_times_of_the_records_that_are_read(self) -> None:
        plan, _ = beside_an_input_at_its_end([10, 90], end=1)
        assert plan == Alignment({FAST: 5, SLOW: 1})

    def test_a_partition_fills_its_room_if_that_input_has_no_records(self) -> None:
        assert beside_an_input_at_its_end([])[0] == Alignment({FAST: 5, SLOW: 0})

    def test_a_partition_that_fills_its_room_beyond_that_record_has_no_known_next_time(self) -> None:
        assert beside_an_input_at_its_end([3])[0] == Alignment({FAST: 5, SLOW: 1})
        assert beside_an_input_at_its_end([4])[0] == Alignment({FAST: 5, SLOW: 1}, {FAST: 5})

    def test_a_partition_with_room_for_all_its_records_or_without_a_limit_is_read_to_its_end(self) -> None:
        for room in ({FAST: 100, SLOW: 5}, {SLOW: 5}):
            plan, index = beside_an_input_at_its_end([50], room=room)
            assert (plan, index.queries) == (Alignment({FAST: 100, SLOW: 1}), 0)
        plan, _ = beside_an_input_at_its_end([50], room={FAST: 99, SLOW: 5})
        assert plan == Alignment({FAST: 99, SLOW: 1})

    def test_an_input_that_was_given_up_is_waited_for_again_when_it_has_records(self) -> None:
        given_up = {SLOW}
        assert beside_an_input_at_its_end([50], read=1, given_up=given_up)[0].ends == {FAST: 100, SLOW: 1}
        assert beside_an_input_at_its_end([50], given_up=given_up)[0].ends == {FAST: 51, SLOW: 1}


def test_a_table_that_is_years_older_than_the_stream_does_not_fill_a_batch_alone() -> None:
    hour, years_ago = 3_600_000, 1_600_000_000_000
    now = years_ago + 50_000 * hour
    logs = {PARTITIONS[0]: [years_ago] * 100, PARTITIONS[1]: list(range(now, now + hour, hour // 1_000))}
    replay = Replay({**logs, PARTITIONS[2]: []}, GROUP, 0, 1_000)
    available = {p: len(log) for p, log in replay.logs.items()}
    plan = replay.plan(available)
    assert 500 <= sum(plan.ends.values()) <= 1_000
    assert replay.index.queries <= 5
