"""Co-processed inputs: how far they are read in a micro-batch, and what their tasks are told of them.

The planner knows what is left on the broker behind a micro-batch; a task knows what it holds. So the planner writes what it
knows, the *facts*, into the offset, where a batch that is run again finds the same:

    {"lag": {topic: {partition: records}}, "until": {topic: {partition: ms}}, "paused": [topic], "unknown": bool,
     "bounded": bool, "written": {repartition topic: ms}}

``lag`` is what is left behind the planned end, ``until`` the time that nothing left is before, ``unknown`` says that no broker
answered, ``bounded`` that this is a run to a fixed end, behind which there is nothing; ``written`` is the time that nothing still to
be written to a repartition topic is before (``millstream.drivers.spark.planner.lower_bounds``), left out if none is known. The reader makes of them what one task
has to know of its inputs, and sends it with the task's records. The rules that a task follows are in
``millstream.core.engine.records.readiness``, those of how far to read in ``millstream.core.runtime.alignment``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.core.engine.records.readiness import NEVER_WAIT, InputFacts
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets, flat, nested, positions_from_json, positions_to_json
from millstream.core.ports import OffsetRange, TimeIndex
from millstream.core.runtime.alignment import Pace, Situation, aligned
from millstream.core.runtime.inputs import CoProcessed, Input, co_processed, informed, writers
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.planner.lower_bounds import until_written

Facts = Mapping[str, Any]
Flat = dict[TopicPartition, int]


@dataclass(frozen=True)
class WaitSettings:
    """How long tasks wait for empty inputs, and how much they hold meanwhile.

    Attributes:
        idle_ms: How long an empty input without lag is waited for; -1 waits for nothing.
        records: Most records that are held per partition.
        size: Most bytes that are held per partition.
    """

    idle_ms: int = 0
    records: int = 50_000
    size: int = 16_000_000


@dataclass(frozen=True)
class Held:
    """What the tasks of an application hold, as they have reported.

    Attributes:
        buffered: Records, bytes and largest timestamp (ms) per input that holds any, all lanes together.
        given_up: Empty inputs that are no longer waited for.
        idle_until_ms: When the first records that are held may go on, because a wait for an empty input ends or calls may have
            come to something; None if there are none.
        room: How many more records the tasks of partitions can take in that have asynchronous operators.
    """

    buffered: Mapping[TopicPartition, tuple[int, int, int]]
    given_up: Collection[TopicPartition] = ()
    idle_until_ms: int | None = None
    room: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Prospect:
    """What the planner sees when it plans a micro-batch.

    Attributes:
        start: Where each partition stands.
        admitted: How far each would be read by its fair share.
        ends: How far each may be read now; paused topics are left out.
        log_ends: How far each could be read if nobody held it back.
        held: What tasks hold.
        paused: Topics that are not read now.
        bounded: Whether ``log_ends`` are the fixed ends of a run to the end.
        bytes_per_record: Average size, None if it is not known.
        before: The facts of the micro-batch before, None if there are none.
    """

    start: Offsets
    admitted: Offsets
    ends: Offsets
    log_ends: Offsets
    held: Held
    paused: Collection[str]
    bounded: bool
    bytes_per_record: float | None
    before: Facts | None = None


class InputPlanner:
    """Plans the co-processed inputs of one query. Owned by the planner.

    Args:
        plan: The topology, split.
        layout: Its tasks.
        settings: How long to wait, and how much to hold.
        index: The broker's time index.
    """

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
        """Whether partitions are planned together, or tasks must know of their inputs."""
        return bool(self._groups or self._watched)

    def planned(self, seen: Prospect) -> tuple[Offsets, Facts | None]:
        """Plan how far the partitions of co-processed inputs are read.

        Returns:
            The ends of the micro-batch, for all partitions, and the facts, None if no task must know them.
        """
        planned = {topic: dict(partitions) for topic, partitions in seen.admitted.items()}
        until: Flat = {}
        for number, group in enumerate(self._groups):
            alignment = aligned(group, self._situation(group, seen), self._index, self._paces[number])
            self._paces[number] = alignment.pace
            until.update(self._still_known(group, alignment.ends, seen))
            until.update(alignment.until)
            for at, end in alignment.ends.items():
                planned[at.topic][at.partition] = end
        ends = _of(seen.log_ends, self._watched)
        lag = {at: left for at, end in ends.items() if (left := end - planned[at.topic][at.partition]) > 0}
        if not self._watched:
            return planned, None
        facts = _facts(lag, until, seen.paused, seen.bounded)
        written = until_written(self._writers, seen.before, facts)
        return planned, {**facts, "written": written} if written else facts

    def _still_known(self, group: CoProcessed, ends: Mapping[TopicPartition, int], seen: Prospect) -> Flat:
        """Return the times that are known of partitions that do not advance: those of the micro-batch before.

        Where nothing may be read, in the first micro-batch of a run, that time is 0 if no other is known.
        """
        if not group.writing:
            return {}
        before = {} if seen.before is None else flat(positions_from_json(seen.before["until"]))
        if not seen.ends and group.broker_time:
            before = {**dict.fromkeys(ends, 0), **before}
        stands = _of(seen.start, group.partitions)
        return {p: at for p, at in before.items() if p in ends and ends[p] == stands[p]}

    def unknown(self, paused: Collection[str], *, bounded: bool) -> Facts:
        """Return the facts while no broker answers."""
        return {**_facts({}, {}, paused, bounded), "unknown": True}

    def _situation(self, group: CoProcessed, seen: Prospect) -> Situation:
        partitions = group.partitions
        stands = _of(seen.start, partitions)
        going = [at for at in partitions if at.topic not in seen.paused]  # what rests holds nobody up
        held = seen.held
        return Situation(
            stands,
            {**stands, **_of(seen.ends, going)},
            {**stands, **_of(seen.log_ends, going)},
            _of(seen.admitted, partitions),
            self._room(group, held, seen.bytes_per_record),
            frozenset(p for i in _inputs(group) if i.partition in held.buffered for p in i.feeders),
            {at: newest for at, (_, _, newest) in held.buffered.items()},
            frozenset(held.given_up),
            frozenset(seen.paused),
            self._settings.idle_ms > 0 and not seen.bounded,
        )

    def _room(self, group: CoProcessed, held: Held, bytes_per_record: float | None) -> Flat:
        """Return how many records each partition may bring that are perhaps kept."""
        records: dict[TopicPartition, int] = defaultdict(int)
        size: dict[TopicPartition, int] = defaultdict(int)
        for each in set(_inputs(group)):
            count, taken, _ = held.buffered.get(each.partition, (0, 0, 0))
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


class InputReader:
    """Makes of facts what each task has to know. Depends on nothing but the offsets of a batch.

    Args:
        plan: The topology, split.
        layout: Its tasks.
        settings: How long to wait, and how much to hold.
    """

    def __init__(self, plan: Plan, layout: Layout, settings: WaitSettings) -> None:
        self._outside = frozenset(plan.broker_topics) - frozenset(plan.internal_topics)
        self._inputs = informed(plan, layout, waits=settings.idle_ms != NEVER_WAIT)

    def told(
        self,
        start: Mapping[str, Any],
        end: Mapping[str, Any],
        ranges: Iterable[OffsetRange],
        ticked: Collection[str],
    ) -> Iterator[tuple[str, bytes]]:
        """Return the tasks that take part in a micro-batch and wait for inputs, with what they have to know.

        A task takes part that gets records or a tick, or for which other inputs than before have lag, a known time or a pause.

        Args:
            start: The offset before the batch.
            end: The offset behind it.
            ranges: What is read.
            ticked: Tasks that take part anyway.
        """
        if "inputs" not in end:
            return
        read = {TopicPartition(r.topic, r.partition) for r in ranges}
        for task, inputs in self._inputs.items():
            now = self._known(inputs, end["inputs"])
            before = self._known(inputs, start["inputs"]) if "inputs" in start else None
            if (
                str(task) in ticked
                or any(p in read for i in inputs for p in i.feeders)
                or changed(before, now)
            ):
                yield str(task), json.dumps(now).encode()

    def _known(self, inputs: tuple[Input, ...], facts: Facts) -> dict[str, Any]:
        """Return what is known of the inputs of a task; one that is re-keyed knows what its feeders know together."""
        lag: Flat = {}
        until: Flat = {}
        paused, ended = set(), []
        for i in inputs:
            if all(p.topic in facts["paused"] for p in i.feeders):
                paused.add(i.partition.topic)
            lags = {p: n for p in i.feeders if (n := _at(facts["lag"], p)) and p.topic not in facts["paused"]}
            times = [at for p in lags if (at := _at(facts["until"], p)) is not None]
            for topic, at in facts.get("written", {}).items():
                coming = [p for p in i.feeders if p.topic == topic not in facts["paused"] and p not in lags]
                lags.update(dict.fromkeys(coming, 1))
                times.extend([at] * len(coming))
            if lags:
                lag[i.partition] = sum(lags.values())
            elif facts["bounded"] and all(p.topic in self._outside for p in i.feeders):
                ended.append([*i.partition])
            if lags and len(times) == len(lags):
                until[i.partition] = min(times)
        return {
            "lag": positions_to_json(nested(lag)),
            "until": positions_to_json(nested(until)),
            "paused": sorted(paused),
            "ended": ended,
            "unknown": bool(facts.get("unknown")),
        }


class TaskInputs:
    """The inputs of the tasks of a topology, as the task host knows them.

    Args:
        plan: The topology, split.
        layout: Its tasks.
    """

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self._inputs = informed(plan, layout, waits=True)

    def facts(self, task: TaskId, payload: bytes | None) -> InputFacts | None:
        """Return what a task is told of its inputs.

        Args:
            task: The task.
            payload: What the reader sent; None if it sent nothing, because nothing is waited for.

        Returns:
            None for a task that needs to know nothing.
        """
        inputs = self._inputs.get(task)
        if inputs is None:
            return None
        partitions = tuple(i.partition for i in inputs)
        if payload is None:
            return InputFacts(partitions)
        told = json.loads(payload)
        return InputFacts(
            partitions,
            flat(positions_from_json(told["lag"])),
            flat(positions_from_json(told["until"])),
            told["unknown"],
            frozenset(told["paused"]),
            frozenset(i.partition.topic for i in inputs if i.shuffled),
            frozenset(TopicPartition(topic, p) for topic, p in told["ended"]),
        )


def changed(before: Facts | None, now: Facts) -> bool:
    """Return whether tasks that hold records may go on now although they could not before: not because of mere numbers."""
    return before is None or _outline(before) != _outline(now)


def _outline(facts: Facts) -> dict[str, Any]:
    """Return facts without the size of the lag."""
    return {**facts, "lag": {topic: list(partitions) for topic, partitions in facts["lag"].items()}}


def _inputs(group: CoProcessed) -> Iterator[Input]:
    return (i for inputs in group.tasks.values() for i in inputs)


def _of(offsets: Offsets, partitions: Iterable[TopicPartition]) -> Flat:
    return {
        at: offsets[at.topic][at.partition] for at in partitions if at.partition in offsets.get(at.topic, {})
    }


def _facts(lag: Flat, until: Mapping[TopicPartition, int], paused: Collection[str], bounded: bool) -> Facts:
    return {
        "lag": positions_to_json(nested(lag)),
        "until": positions_to_json(nested({at: ms for at, ms in until.items() if at in lag})),
        "paused": sorted(paused),
        "bounded": bounded,
    }


def _at(nested: Mapping[str, Mapping[str, int]], at: TopicPartition) -> int | None:
    return nested.get(at.topic, {}).get(str(at.partition))
