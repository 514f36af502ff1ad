"""Plans co-processed inputs: how far a micro-batch reads them, and which facts their tasks receive about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from millstream.core.engine.records.readiness import NEVER_WAIT
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.ports import OffsetRange, TimeIndex
from millstream.core.runtime.alignment import Pace, Situation, plan_alignment
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.runtime.inputs import CoProcessed, Input, WaitSettings, co_processed, informed, writers
from millstream.core.runtime.messages import BufferedRecords
from millstream.core.runtime.remaining_inputs import RemainingInputs, TaskInput, lets_tasks_continue
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan

Flat = dict[TopicPartition, int]


@dataclass(frozen=True)
class Outlook:
    """The planner's knowledge when it plans a micro-batch. Offsets are per partition.

    Attributes:
        admitted: End of the partition's fair share.
        ends: Offset up to which the partition may be read now. Paused topics are missing.
        log_ends: Offset up to which the partition could be read without limits.
        bounded: Whether ``log_ends`` are the fixed ends of a run to the end.
        bytes_per_record: Average size of a record. None if unknown.
        before: What the previous micro-batch left of the inputs. None if unknown.
        epoch_ends: How far logs of split partitions can be read in the epochs that are being read. Logs that may grow are missing.
    """

    start: Offsets
    admitted: Offsets
    ends: Offsets
    log_ends: Offsets
    records: BufferedRecords
    paused: Collection[str]
    bounded: bool
    bytes_per_record: float | None
    before: RemainingInputs | None = None
    epoch_ends: Mapping[TopicPartition, int] = field(default_factory=dict)


class InputPlanner:
    """Plans inputs that tasks process together. Owned by the planner."""

    def __init__(self, plan: Plan, layout: Layout, settings: WaitSettings, index: TimeIndex) -> None:
        self._settings = settings
        self._index = index
        waits = settings.idle_ms != NEVER_WAIT
        self._groups = co_processed(plan, layout, waits=waits)
        self._paces: list[Pace | None] = [None] * len(self._groups)
        tasks = informed(plan, layout, waits=waits)
        inputs = {i for inputs in tasks.values() for i in inputs}
        self._watched = sorted({p for i in inputs for p in (*i.feeders, *i.origins)})
        self._writers = writers(plan) if waits and not all(i.direct for i in inputs) else {}

    @property
    def active(self) -> bool:
        """Whether inputs are planned together, or tasks need facts about their inputs."""
        return bool(self._groups or self._watched)

    def planned(self, now: Outlook) -> tuple[Offsets, RemainingInputs | None]:
        """Plan how far to read inputs that tasks process together.

        Returns:
            The ends of all partitions, and the remaining inputs. The latter are None if no task needs them.
        """
        planned = {topic: dict(partitions) for topic, partitions in now.admitted.items()}
        until: Flat = {}
        for number, group in enumerate(self._groups):
            alignment = plan_alignment(group, self._situation(group, now), self._index, self._paces[number])
            self._paces[number] = alignment.pace
            until.update(_still_known(group, alignment.ends, now))
            until.update(alignment.until)
            for (topic, partition), end in alignment.ends.items():
                planned[topic][partition] = end
        if not self._watched:
            return planned, None
        behind = _lag(_offsets_of(now.log_ends, self._watched), planned)
        known = {partition: time for partition, time in until.items() if partition in behind}
        closed = _closed(now.epoch_ends, planned)
        remaining = RemainingInputs(behind, known, frozenset(now.paused), now.bounded, closed=closed)
        return planned, replace(remaining, to_be_written=lower_bounds(self._writers, now.before, remaining))

    def _situation(self, group: CoProcessed, now: Outlook) -> Situation:
        partitions, records = group.partitions, now.records
        start = _offsets_of(now.start, partitions)
        active = [
            partition for partition in partitions if partition.topic not in now.paused
        ]  # no task waits for a paused topic
        return Situation(
            start,
            {**start, **_offsets_of(now.ends, active)},
            {**start, **_offsets_of(now.log_ends, active)},
            _offsets_of(now.admitted, partitions),
            self._room(group, records, now.bytes_per_record),
            frozenset(p for i in _inputs(group) if i.partition in records.buffered for p in i.feeders),
            {partition: newest for partition, (_, _, newest) in records.buffered.items()},
            _closed(now.epoch_ends, now.start).union(records.given_up),
            frozenset(now.paused),
            self._settings.idle_ms > 0 and not now.bounded,
        )

    def _room(self, group: CoProcessed, buffered: BufferedRecords, bytes_per_record: float | None) -> Flat:
        """Return how many records each partition may add to the buffers."""
        records: dict[TopicPartition, int] = defaultdict(int)
        size: dict[TopicPartition, int] = defaultdict(int)
        for each in set(_inputs(group)):
            count, taken, _ = buffered.buffered.get(each.partition, (0, 0, 0))
            for p in each.feeders:
                records[p] += count
                size[p] += taken
        fed = {p for each in _inputs(group) for p in each.feeders}
        limits, average = self._settings, max(bytes_per_record or 1.0, 1.0)
        return {
            p: max(
                min(limits.records - records[p], int((limits.size - size[p]) / average)), int(not records[p])
            )
            for p in group.partitions
            if p in fed
        }


class TaskInputPlanner:
    """Decides which tasks get input facts in a micro-batch. Depends only on the plans of micro-batches."""

    def __init__(self, plan: Plan, layout: Layout, settings: WaitSettings) -> None:
        self._outside = frozenset(plan.broker_topics) - frozenset(plan.internal_topics)
        self._inputs = informed(plan, layout, waits=settings.idle_ms != NEVER_WAIT)

    def messages(
        self, start: BatchPlan, end: BatchPlan, ranges: Iterable[OffsetRange], ticked: Collection[str]
    ) -> Iterator[tuple[str, TaskInput]]:
        """Return the tasks that wait for inputs and take part in a micro-batch, with their input facts.

        A task takes part if it receives records or a tick, or if the set of its inputs with lag, a known time or a pause has
        changed.

        Args:
            ticked: Tasks that take part in any case.
        """
        if end.inputs is None:
            return
        read = {TopicPartition(r.topic, r.partition) for r in ranges}
        for task, inputs in self._inputs.items():
            now = self._message(inputs, end.inputs)
            before = None if start.inputs is None else self._message(inputs, start.inputs)
            if (
                str(task) in ticked
                or any(p in read for i in inputs for p in i.feeders)
                or lets_tasks_continue(before, now)
            ):
                yield str(task), now

    def _message(self, inputs: tuple[Input, ...], remaining: RemainingInputs) -> TaskInput:
        """Return the facts about a task's inputs. For a repartition, combine the facts of all partitions that feed it."""
        lag: Flat = {}
        until: Flat = {}
        paused, ended, closed = set(), set(), set()
        for each in inputs:
            if all(p.topic in remaining.paused for p in each.feeders):
                paused.add(each.partition.topic)
            lags, times = _lag_of(each, remaining)
            if lags:
                lag[each.partition] = sum(lags.values())
            elif each.partition in remaining.closed:
                closed.add(each.partition)
            elif remaining.bounded and all(p.topic in self._outside for p in each.feeders):
                ended.add(each.partition)
            if lags and len(times) == len(lags):
                until[each.partition] = min(times)
        return TaskInput(
            lag, until, frozenset(paused), frozenset(ended), remaining.unknown, frozenset(closed)
        )


def _lag_of(each: Input, remaining: RemainingInputs) -> tuple[Flat, list[int]]:
    """Return the lag of the partitions that feed an input, and their known times."""
    active = [p for p in each.feeders if p.topic not in remaining.paused]
    lags = {p: n for p in active if (n := remaining.lag.get(p))}
    times = [ms for p in lags if (ms := remaining.until.get(p)) is not None]
    for topic, ms in remaining.to_be_written.items():
        coming = [p for p in active if p.topic == topic and p not in lags]
        lags.update(dict.fromkeys(coming, 1))
        times.extend([ms] * len(coming))
    return lags, times


def _still_known(group: CoProcessed, ends: Mapping[TopicPartition, int], now: Outlook) -> Flat:
    """Return the known times of partitions that do not advance: those of the previous micro-batch.

    In the first micro-batch of a run, which reads nothing, an unknown time is 0.
    """
    if not group.writing:
        return {}
    before = {} if now.before is None else dict(now.before.until)
    if not now.ends and group.broker_time:
        before = {**dict.fromkeys(ends, 0), **before}
    start = _offsets_of(now.start, group.partitions)
    return {p: ms for p, ms in before.items() if p in ends and ends[p] == start[p]}


def _inputs(group: CoProcessed) -> Iterator[Input]:
    return (i for inputs in group.tasks.values() for i in inputs)


def _lag(ends: Flat, planned: Offsets) -> Flat:
    """Return the number of records after the planned offset, for each partition that has any."""
    left = {partition: end - planned[partition.topic][partition.partition] for partition, end in ends.items()}
    return {partition: count for partition, count in left.items() if count > 0}


def _closed(epoch_ends: Mapping[TopicPartition, int], read: Offsets) -> frozenset[TopicPartition]:
    """Return the logs of split partitions that are read to the end of the epoch that is being read."""
    return frozenset(p for p, offset in _offsets_of(read, epoch_ends).items() if offset >= epoch_ends[p])


def _offsets_of(offsets: Offsets, partitions: Iterable[TopicPartition]) -> Flat:
    return {
        partition: offsets[partition.topic][partition.partition]
        for partition in partitions
        if partition.partition in offsets.get(partition.topic, {})
    }


def lower_bounds(
    writers: Mapping[str, Collection[str]], before: RemainingInputs | None, now: RemainingInputs
) -> dict[str, int]:
    """Return a lower bound for the timestamps of records still to be written, for each repartition topic, in ms.

    A task that reads a repartition topic reads the output of its writers one micro-batch later. While the writers work through a backlog,
    each micro-batch reads up to one time: the records that the previous micro-batch left on the broker are not older than its time, so
    neither is the current output. The first micro-batch of a backlog has no such time; the bound is then 0, and the task waits one
    micro-batch. If the writers have read everything, or read without such a time, the topic is missing from the result, and the task
    continues without it, like Kafka Streams.

    Args:
        writers: The input topics of the tasks that write each repartition topic, in topological order.
        before: The remaining inputs of the previous micro-batch. None if there was none.

    Example:
        >>> from millstream.core.model.ids import TopicPartition
        >>> left = RemainingInputs({TopicPartition("in", 0): 9}, {TopicPartition("in", 0): 70})
        >>> lower_bounds({"again": ["in"]}, left, left), lower_bounds({"again": ["in"]}, None, left)
        ({'again': 70}, {'again': 0})
    """
    bounds: dict[str, int] = {}
    for topic, inputs in writers.items():
        times = [] if before is None else _times_left(inputs, before, before.to_be_written)
        if not times:
            times = [ms and 0 for ms in _times_left(inputs, now, bounds)]
        known = [ms for ms in times if ms is not None]
        if known and len(known) == len(times):
            bounds[topic] = min(known)
    return bounds


def _times_left(
    topics: Collection[str], remaining: RemainingInputs, to_be_written: Mapping[str, int]
) -> list[int | None]:
    """Return the times of the remaining records of topics, in ms. An unknown time is None."""
    times: list[int | None] = [to_be_written[topic] for topic in topics if topic in to_be_written]
    read = set(topics) - remaining.paused
    times.extend(
        remaining.until.get(partition)
        for partition, lag in remaining.lag.items()
        if lag and partition.topic in read
    )
    return times
