"""Alignment: how far the partitions of co-processed inputs advance in one micro-batch.

Equal numbers of records would be wrong: of a fast topic and a slow one, the batch would hold ten minutes of the one and ten
days of the other, and nearly all records of the slow one would have to be kept back. So, when there is more than the batch
may take, one time T is chosen, and each partition is read to its first record at or after T, which the broker's time index
gives. Everything before T can then be processed, and the next record of each partition is known to be at T or later:
its *virtual head* (``millstream.core.engine.readiness``).

T is searched so that the records before it are between half and all of the *budget* of the batch: from the pace of
the last batch, then by turns where a straight line through the known counts says, and in the middle. More records at one
millisecond than the budget are read partition by partition, in the order in which the tasks take them.

Records that may not be processed yet are kept, in the task's snapshot, and must not grow without bound:

* where there is no T (timestamps that an extractor makes, or partitions that were read beyond it), a partition gets no more
  than its *room*, what its buffer limit leaves;
* when an input is read to its end and may be waited for, the others can be processed up to its last record, the *horizon*;
  beyond, they get no more than their room.

An empty buffer has room, so whatever a task waits for can always be read: nothing waits for itself.
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
"""After so many questions a batch that is less than half full is good enough."""


@dataclass(frozen=True)
class Situation:
    """What a plan for co-processed partitions starts from.

    Attributes:
        start: Where each partition stands.
        ends: How far it may be read now.
        log_ends: How far it could be read if nobody held it back; what is paused counts as read to its end.
        admitted: How far it would be read if it were not co-processed: its fair share of the batch.
        room: Records that its buffer limit leaves.
        held: Partitions of which some task holds records.
        newest: Per input of a task that holds records, their largest timestamp (ms).
        given_up: Empty inputs that are no longer waited for.
        paused: Topics that are not read now, and not waited for.
        idles: Whether tasks wait for inputs that are at their end.
    """

    start: Positions
    ends: Positions
    log_ends: Positions
    admitted: Positions
    room: Positions = field(default_factory=dict)
    held: Collection[TopicPartition] = ()
    newest: Positions = field(default_factory=dict)
    given_up: Collection[TopicPartition] = ()
    paused: Collection[str] = ()
    idles: bool = False


@dataclass(frozen=True)
class Pace:
    """How the last aligned batch went: where the next search begins.

    Attributes:
        time_ms: The time that was read to.
        records_per_ms: Records per millisecond of their timestamps; 0 if it is not known.
    """

    time_ms: int
    records_per_ms: float = 0.0


@dataclass(frozen=True)
class Alignment:
    """A plan for co-processed partitions.

    Attributes:
        ends: How far each partition is read.
        until: For partitions of which it is known, the time that no later record is before.
        pace: What the next search begins with, None if nothing was searched.
    """

    ends: Positions
    until: Positions = field(default_factory=dict)
    pace: Pace | None = None


def aligned(group: CoProcessed, now: Situation, index: TimeIndex, pace: Pace | None = None) -> Alignment:
    """Plan co-processed partitions.

    Args:
        group: What is planned together.
        now: What there is to read, and what tasks hold.
        index: The broker's time index.
        pace: How the last aligned batch went.
    """
    budget = _total(now.start, now.admitted)
    plan: Alignment | None
    if now.ends == now.log_ends and _total(now.start, now.ends) <= budget:
        plan = Alignment(dict(now.ends))
    else:
        plan = _Search(now, index, budget).run(pace) if group.broker_time and budget else None
        if plan is None:
            reach = {p: min(at, now.start[p] + now.room.get(p, at)) for p, at in now.admitted.items()}
            return Alignment(reach, {}, pace)
    return _within_room(group, now, index, plan) if now.idles else plan


def _total(start: Positions, ends: Positions) -> int:
    return sum(ends[p] - at for p, at in start.items())


class _Search:
    """The search for one batch's time."""

    def __init__(self, now: Situation, index: TimeIndex, budget: int) -> None:
        self._now = now
        self._index = index
        self._budget = budget
        self._lagging = [p for p, at in sorted(now.start.items()) if now.log_ends[p] > at]

    def run(self, pace: Pace | None) -> Alignment | None:
        """Search; None if some partition that holds nothing was read beyond the time already, so that order cannot be known."""
        now, budget = self._now, self._budget
        low = self._oldest() if pace is None else pace.time_ms
        high = max((at.timestamp_ms for at in self._index.newest(self._lagging).values()), default=low) + 1
        begin, few, many = low, 0, _total(now.start, now.log_ends)
        guess = None if pace is None or not pace.records_per_ms else budget * 0.75 / pace.records_per_ms
        queries, best = 0, None
        while high - low > 1 and (best is None or queries < _ENOUGH_QUERIES):
            straight = (high - low) * (0.75 * budget - few) / max(many - few, 1)
            middle = queries % 2 or straight <= 0
            step = guess if guess is not None else (high - low) // 2 if middle else straight
            time_ms, guess = min(max(low + int(step), low + 1), high - 1), None
            offsets = self._offsets(time_ms)
            queries += 1
            reach = self._reach(offsets)
            count = _total(now.start, reach)
            if count > budget or any(reach[p] > now.ends[p] for p in self._lagging):
                high, many = time_ms, count
                continue
            low, few = time_ms, count
            best = offsets if count else None
            if 2 * count >= budget:
                break
        if best is None and pace is not None and _total(now.start, self._reach(self._offsets(low))):
            return self.run(
                None
            )  # there are new records from before the time that the last batch was read to
        if best is None:
            return self._one_millisecond(low)
        return self._plan(best, low, Pace(low, few / (low - begin)))

    def _oldest(self) -> int:
        first = self._index.offsets_for_times(dict.fromkeys(self._lagging, 0))
        return min((at.timestamp_ms for at in first.values()), default=0)

    def _offsets(self, time_ms: int) -> Positions:
        """Return the first offset at or after a time, the end where there is none."""
        found = self._index.offsets_for_times(dict.fromkeys(self._lagging, time_ms))
        return {p: found[p].offset if p in found else self._now.log_ends[p] for p in self._lagging}

    def _reach(self, offsets: Positions) -> dict[TopicPartition, int]:
        """Return how far partitions are read up to offsets: not back, and not beyond what can be read."""
        now = self._now
        return {
            p: max(at, min(offsets[p], now.log_ends[p])) if p in offsets else at
            for p, at in now.start.items()
        }

    def _plan(self, offsets: Positions, time_ms: int, pace: Pace) -> Alignment | None:
        reach = self._reach(offsets)
        until = {p: time_ms for p in self._lagging if reach[p] == offsets[p] < self._now.log_ends[p]}
        return self._checked(reach, until, pace)

    def _one_millisecond(self, low: int) -> Alignment | None:
        """Read a part of the records of one millisecond, which are more than the budget, in the order of partitions."""
        at_low, behind = self._offsets(low), self._offsets(low + 1)
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
        return self._checked(reach, until, Pace(low))

    def _checked(self, reach: Positions, until: Positions, pace: Pace) -> Alignment | None:
        """Refuse a plan in which a task may wait for a partition that does not advance."""
        now = self._now
        for p in self._lagging:
            holds = p in now.held and now.newest.get(p, pace.time_ms) >= pace.time_ms
            if p not in until and not holds and reach[p] == now.start[p]:
                return None
        return Alignment(reach, until, pace)


def _within_room(group: CoProcessed, now: Situation, index: TimeIndex, plan: Alignment) -> Alignment:
    """Keep partitions that could be read ahead of an input that is waited for within their room."""
    waited = _waited_for(group, now, plan.ends)
    tight = {
        p: siblings
        for p, siblings in waited.items()
        if p in now.room and plan.ends[p] - now.start[p] > now.room[p]
    }
    if not tight:
        return plan
    horizons = _horizons({i for siblings in tight.values() for i in siblings}, group, now, index, plan.ends)
    times = {
        p: min(horizons[i.partition] for i in siblings)
        for p, siblings in tight.items()
        if all(i.partition in horizons for i in siblings)
    }
    found = index.offsets_for_times(times) if times else {}
    ends, until = dict(plan.ends), dict(plan.until)
    for p in tight:
        safe = _offset(found, p, plan.ends[p]) if p in times else now.start[p]
        end = min(plan.ends[p], max(safe, now.start[p] + now.room[p]))
        if end < plan.ends[p]:
            until.pop(p, None)
            if p in times and end == safe:
                until[p] = times[p]
        ends[p] = end
    return Alignment(ends, until, plan.pace)


def _offset(found: Mapping[TopicPartition, TimedOffset], p: TopicPartition, otherwise: int) -> int:
    return found[p].offset if p in found else otherwise


def _waited_for(
    group: CoProcessed, now: Situation, ends: Positions
) -> dict[TopicPartition, tuple[Input, ...]]:
    """Return the inputs that are at their end and may be waited for, for each partition that another one of them holds up.

    All partitions of a task are kept behind the same horizon, and those of all tasks if some are re-keyed: what feeds several tasks
    holds them all up.
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
    """Return the time of the last record of inputs, where it is known: of those held, or of those to be read."""
    inputs = set(inputs)
    horizons = {i.partition: now.newest[i.partition] for i in inputs if i.partition in now.newest}
    direct = [i.partition for i in inputs if i.direct and ends[i.partition] > now.start[i.partition]]
    newest = index.newest(direct) if direct and group.broker_time else {}
    for p, last in newest.items():
        if now.start[p] <= last.offset < ends[p]:
            horizons[p] = max(last.timestamp_ms, horizons.get(p, -1))
    return horizons
