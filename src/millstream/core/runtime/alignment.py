"""Alignment: how far the partitions of co-processed inputs advance in one micro-batch.

If equal numbers of records were read from a fast and a slow topic, a task would have to buffer nearly all records of the slow topic. If
there is more to read than the micro-batch allows, the planner therefore chooses a time T and reads each partition up to its first record
at or after T, which the broker's time index returns. All records before T can then be processed, and the next record of each partition is
known to be at T or later: its *virtual head* (``millstream.core.engine.records.readiness``).

The search for T ends when the number of records before T is between half and all of the *budget* of the micro-batch. It starts from the
pace of the last micro-batch, then alternates between linear interpolation and bisection. It skips times without records, because each
answer of the index contains the time of the next record. If one millisecond has more records than the budget, they are read partition by
partition, in the order in which the tasks process them.

Records that must not be processed yet are kept in the task's snapshot, whose size must stay limited:

* if there is no T (timestamps come from an extractor, or partitions were read beyond it), a partition receives at most its *room*, the
  rest of its buffer limit;
* if an input is read to its end and tasks may wait for it, the other inputs can be processed up to its last record, the *horizon*, and
  with the same timestamp if they come before it in the order of partitions; beyond, they receive at most their room.

An empty buffer has room, so the input for which a task waits can always be read: there is no deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from millstream.core.model.ids import TopicPartition
from millstream.core.ports import TimedOffset, TimeIndex
from millstream.core.runtime.inputs import CoProcessed, Input

Positions = Mapping[TopicPartition, int]

_ENOUGH_QUERIES: Final = 8
"""Number of queries after which a micro-batch that is less than half full is accepted."""


@dataclass(frozen=True)
class Situation:
    """The input of a plan for co-processed partitions.

    Attributes:
        start: Current position of each partition.
        ends: Offset up to which it may be read now.
        log_ends: Offset up to which it could be read without limits. A paused partition counts as read to its end.
        admitted: Offset up to which it would be read if it were not co-processed: its fair share of the micro-batch.
        room: Number of records until its buffer limit is reached.
        buffered: Partitions whose records a task has buffered.
        newest: Largest timestamp (ms) of the buffered records, per input of a task.
        paused: Topics that are not read now and for which no task waits.
        idles: Whether tasks wait for inputs that are at their end.
    """

    start: Positions
    ends: Positions
    log_ends: Positions
    admitted: Positions
    room: Positions = field(default_factory=dict)
    buffered: Collection[TopicPartition] = ()
    newest: Positions = field(default_factory=dict)
    given_up: Collection[TopicPartition] = ()
    paused: Collection[str] = ()
    idles: bool = False


@dataclass(frozen=True)
class Pace:
    """Result of the last aligned micro-batch, from which the next search starts.

    Attributes:
        time_ms: The time T up to which the micro-batch was read, ms since the epoch.
        records_per_ms: Records per millisecond of their timestamps; 0 if unknown.
    """

    time_ms: int
    records_per_ms: float = 0.0


@dataclass(frozen=True)
class Alignment:
    """A plan for co-processed partitions.

    Attributes:
        until: For some partitions, a time (ms) that no later record precedes.
        pace: Start of the next search; None if there was no search.
    """

    ends: Positions
    until: Positions = field(default_factory=dict)
    pace: Pace | None = None


def plan_alignment(
    group: CoProcessed, now: Situation, index: TimeIndex, pace: Pace | None = None
) -> Alignment:
    budget = _total(now.start, now.admitted)
    plan: Alignment | None
    if now.ends == now.log_ends and _total(now.start, now.ends) <= budget:
        plan = Alignment(dict(now.ends))
    else:
        plan = _Search(now, index, budget).run(pace) if group.broker_time and budget else None
        if plan is None:
            reach = {
                p: min(offset, now.start[p] + now.room.get(p, offset)) for p, offset in now.admitted.items()
            }
            return Alignment(reach, {}, pace)
    return _within_room(group, now, index, plan) if now.idles else plan


def _total(start: Positions, ends: Positions) -> int:
    return sum(ends[p] - offset for p, offset in start.items())


class _Search:
    def __init__(self, now: Situation, index: TimeIndex, budget: int) -> None:
        self._now = now
        self._index = index
        self._budget = budget
        self._lagging = [p for p, offset in sorted(now.start.items()) if now.log_ends[p] > offset]

    def run(self, pace: Pace | None) -> Alignment | None:
        """Search T. None if a partition without buffered records was already read beyond T, so that the order is unknown."""
        now, budget = self._now, self._budget
        low = self._oldest() if pace is None else pace.time_ms
        high = (
            max((record.timestamp_ms for record in self._index.newest(self._lagging).values()), default=low)
            + 1
        )
        begin, few, many = low, 0, _total(now.start, now.log_ends)
        guess = None if pace is None or not pace.records_per_ms else budget * 0.75 / pace.records_per_ms
        queries, best = 0, None
        while high - low > 1 and (best is None or queries < _ENOUGH_QUERIES):
            straight = (high - low) * (0.75 * budget - few) / max(many - few, 1)
            middle = queries % 2 or straight <= 0
            step = guess if guess is not None else (high - low) // 2 if middle else straight
            time_ms, guess = min(max(low + int(step), low + 1), high - 1), None
            offsets, next_ms = self._offsets(time_ms)
            queries += 1
            reach = self._reach(offsets)
            count = _total(now.start, reach)
            if count > budget or any(reach[p] > now.ends[p] for p in self._lagging):
                high, many = time_ms, count
                continue
            low, few = min(next_ms, high - 1), count
            best = offsets if count else None
            if 2 * count >= budget:
                break
        if best is None and pace is not None and _total(now.start, self._reach(self._offsets(low)[0])):
            return self.run(None)  # there are new records from before the T of the last micro-batch
        if best is None:
            return self._one_millisecond(low)
        return self._plan(best, low, Pace(low, few / (low - begin)))

    def _oldest(self) -> int:
        first = self._index.offsets_for_times(dict.fromkeys(self._lagging, 0))
        return min((record.timestamp_ms for record in first.values()), default=0)

    def _offsets(self, time_ms: int) -> tuple[Positions, int]:
        """Return, by partition, the first offset at or after a time, or else the end; and the time of the first of these records."""
        first = self._index.offsets_for_times(dict.fromkeys(self._lagging, time_ms))
        offsets = {p: first[p].offset if p in first else self._now.log_ends[p] for p in self._lagging}
        return offsets, min((record.timestamp_ms for record in first.values()), default=time_ms)

    def _reach(self, offsets: Positions) -> dict[TopicPartition, int]:
        """Return how far to read partitions for the given offsets: never backwards, and not beyond the end of the log."""
        now = self._now
        return {
            p: max(offset, min(offsets[p], now.log_ends[p])) if p in offsets else offset
            for p, offset in now.start.items()
        }

    def _plan(self, offsets: Positions, time_ms: int, pace: Pace) -> Alignment | None:
        reach = self._reach(offsets)
        until = {p: time_ms for p in self._lagging if reach[p] == offsets[p] < self._now.log_ends[p]}
        return self._checked(reach, until, pace)

    def _one_millisecond(self, low: int) -> Alignment | None:
        """Read part of the records of one millisecond, which exceed the budget, in the order of partitions."""
        (at_low, _), (behind, _) = self._offsets(low), self._offsets(low + 1)
        reach, until, left = dict(self._now.start), {}, self._budget
        reachable = self._reach(behind)
        for p in self._lagging:  # in order
            taken = min(min(reachable[p], self._now.ends[p]) - reach[p], left)
            reach[p] += taken
            left -= taken
            if reach[p] == behind[p] < self._now.log_ends[p]:
                until[p] = low + 1
            elif not taken and reach[p] == at_low[p]:
                until[p] = low
            elif reach[p] < behind[p] and self._now.start[p] > at_low[p] and left + taken < self._budget:
                return None  # its next records may be older than those of the partitions before it, which would wait
        return self._checked(reach, until, Pace(low))

    def _checked(self, reach: Positions, until: Positions, pace: Pace) -> Alignment | None:
        """Return the plan, or None if a task might wait for a partition that does not advance."""
        now = self._now
        for p in self._lagging:
            buffers = p in now.buffered and now.newest.get(p, pace.time_ms) >= pace.time_ms
            if p not in until and not buffers and reach[p] == now.start[p]:
                return None
        return Alignment(reach, until, pace)


def _within_room(group: CoProcessed, now: Situation, index: TimeIndex, plan: Alignment) -> Alignment:
    """Limit partitions that could be read ahead of an input for which tasks wait to their room."""
    waited = _waited_for(group, now, plan.ends)
    tight = {
        p: siblings
        for p, siblings in waited.items()
        if p in now.room and plan.ends[p] - now.start[p] > now.room[p]
    }
    if not tight:
        return plan
    direct = {i.partition for inputs in group.tasks.values() for i in inputs if i.direct}
    horizons = _horizons({i for siblings in tight.values() for i in siblings}, group, now, index, plan.ends)
    times = {
        p: min(_first_blocked_ms(p, i, horizons[i.partition], direct) for i in siblings)
        for p, siblings in tight.items()
        if all(i.partition in horizons for i in siblings)
    }
    first = index.offsets_for_times(times) if times else {}
    ends, until = dict(plan.ends), dict(plan.until)
    for p in tight:
        safe = _offset(first, p, plan.ends[p]) if p in times else now.start[p]
        end = min(plan.ends[p], max(safe, now.start[p] + now.room[p]))
        if end < plan.ends[p]:
            until.pop(p, None)
            if p in times and end == safe:
                until[p] = times[p]
        ends[p] = end
    return Alignment(ends, until, plan.pace)


def _first_blocked_ms(
    p: TopicPartition, i: Input, horizon_ms: int, direct: Collection[TopicPartition]
) -> int:
    """Return the time from which records of a partition have to wait for the next record of an input.

    A task processes records with the timestamp of the input's last record before it if their partition comes first. If they were not
    read, the last records of the input would wait for them in a buffer.
    """
    return horizon_ms + 1 if i.direct and p in direct and p < i.partition else horizon_ms


def _offset(first: Mapping[TopicPartition, TimedOffset], p: TopicPartition, otherwise: int) -> int:
    return first[p].offset if p in first else otherwise


def _waited_for(
    group: CoProcessed, now: Situation, ends: Positions
) -> dict[TopicPartition, tuple[Input, ...]]:
    """Return the inputs at their end for which tasks may wait, by partition whose processing waits for them.

    All partitions of a task have the same horizon. If some partitions are re-keyed, all tasks have the same horizon, because a partition
    that feeds several tasks delays all of them.
    """
    together = [list(inputs) for inputs in group.tasks.values()]
    if any(not i.direct for inputs in together for i in inputs):
        together = [[i for inputs in together for i in inputs]]
    waited: dict[TopicPartition, tuple[Input, ...]] = {}
    for inputs in together:
        finished = tuple(i for i in inputs if _may_be_waited_for(i, now, ends))
        for own in inputs:
            if any(i != own for i in finished):
                waited.update(dict.fromkeys(own.origins, finished))
    return waited


def _may_be_waited_for(i: Input, now: Situation, ends: Positions) -> bool:
    if all(p.topic in now.paused for p in i.origins) or any(ends[p] < now.log_ends[p] for p in i.origins):
        return False
    return i.partition not in now.given_up or any(ends[p] > now.start[p] for p in i.origins)


def _horizons(
    inputs: Iterable[Input], group: CoProcessed, now: Situation, index: TimeIndex, ends: Positions
) -> Positions:
    """Return the time of the last record of inputs, if known, among the buffered records and those to be read."""
    inputs = set(inputs)
    horizons = {i.partition: now.newest[i.partition] for i in inputs if i.partition in now.newest}
    direct = [i.partition for i in inputs if i.direct and ends[i.partition] > now.start[i.partition]]
    newest = index.newest(direct) if direct and group.broker_time else {}
    for p, last in newest.items():
        if now.start[p] <= last.offset < ends[p]:
            horizons[p] = max(last.timestamp_ms, horizons.get(p, last.timestamp_ms))
    return horizons
