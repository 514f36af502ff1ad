"""Assigns the reads of a planned micro-batch to Spark tasks. Depends only on the plans, so that the assignment can be repeated.

A start repeats an interrupted micro-batch with the topics that exist now. Records of a topic that has been recreated since the plan are
other records than the planned ones, so they are not read, and the next plan begins with them. Ranges of a topic that the topology does not
read now are left out, too; the planner puts their beginnings back into the positions.
"""

from __future__ import annotations

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, nested
from millstream.core.ports import BatchId, OffsetRange
from millstream.core.runtime.admission import packed, ranges, returned
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.runtime.changes import recreated
from millstream.core.runtime.origins import topics_read_whole
from millstream.core.topology.evolution import newly_gone
from millstream.drivers.spark import wire
from millstream.drivers.spark.planner.global_ends import global_ends
from millstream.drivers.spark.planner.input_planner import TaskInputPlanner
from millstream.drivers.spark.spec import PlannedRead, SourceSpec


class ReadPlanner:
    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        topology = spec.topology
        self._inputs = TaskInputPlanner(topology.plan, topology.layout, spec.waits)
        self._whole = topics_read_whole(topology.plan)
        self._unread: dict[BatchId, Offsets] = {}

    def reads(self, start: BatchPlan, end: BatchPlan) -> list[PlannedRead]:
        # The first micro-batch of a run reads nothing. Spark does not store where the first one of a checkpoint begins: if it repeats that
        # one, it asks the planner of the new run, which may begin earlier, because it finds a checkpoint and rebuilds nothing.
        planned = self._planned(start, end) if end.initialization is None else []
        batch, clock, readers = wire.batch_text(end.id), end.clock, self._spec.readers
        reads = [
            PlannedRead(batch, clock, ranges=part, times=end.times or {})
            for part in packed(planned, readers, whole=self._whole)
        ]
        tasks = self._ticked(start, end) if end.tick != start.tick else []
        ticking = min(readers, len(tasks))
        reads.extend(
            PlannedRead(batch, clock, ticks=tasks[i::ticking], initialization=end.initialization)
            for i in range(ticking)
        )
        if back := self._behind_shuffle(self._still_read(returned(start.positions, end.positions))):
            reads.append(PlannedRead(batch, clock, back=back))
        inputs = list(self._inputs.messages(start, end, planned, tasks))
        if inputs and not reads:
            reads.append(PlannedRead(batch, clock))
        ends = global_ends(end, self._spec)
        for number, read in enumerate(reads):
            read.inputs, read.global_ends, read.taps = inputs[number :: len(reads)], ends, end.taps
        return reads

    def unread(self, batch: BatchId) -> Offsets:
        """Return where the ranges begin that were planned for the last micro-batch, if it is this one, and that were left out."""
        return self._unread.get(batch, {})

    def _planned(self, start: BatchPlan, end: BatchPlan) -> list[OffsetRange]:
        """Return the planned ranges of the topics that are still read and are still the same."""
        again = recreated(end.topology.topic_ids, self._spec.topology.lineage.topic_ids)
        planned = [r for r in ranges(start.positions, end.positions) if r.topic not in again]
        read = self._still_read(planned)
        left_out = {TopicPartition(r.topic, r.partition): r.start for r in set(planned) - set(read)}
        self._unread = {end.id: nested(left_out)} if left_out else {}
        return read

    def _ticked(self, start: BatchPlan, end: BatchPlan) -> list[str]:
        """Return the tasks that run without records: the woken tasks, or, if none was woken, all tasks and those to be removed."""
        gone = newly_gone(start.topology.parts, end.topology.parts)
        tasks = [str(task) for task in (*self._spec.topology.layout.tasks, *gone)]
        return [task for task in tasks if task in end.woken] if end.woken else tasks

    def _behind_shuffle(self, planned: list[OffsetRange]) -> list[OffsetRange]:
        """Drop the ranges that are read before the shuffle, where no task keeps its position."""
        plan = self._spec.topology.plan
        return [r for r in planned if not plan.runs_before_shuffle(plan.subtopology_of[r.topic])]

    def _still_read(self, planned: list[OffsetRange]) -> list[OffsetRange]:
        """Drop the ranges that an edited topology no longer reads when it repeats a micro-batch of its predecessor."""
        tasks_of = self._spec.topology.layout.tasks_of
        return [r for r in planned if TopicPartition(r.topic, r.partition) in tasks_of]
