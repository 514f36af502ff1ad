"""Continuity: what a start takes over from the checkpoint, checked before anything runs.

The offset of the last planned micro-batch describes the earlier topology: the numbers of its sub-topologies, the partition counts of its
repartitions, and the ids of its topics. A start that cannot continue this topology is refused here, with an explanation, instead of
failing in the middle of a micro-batch.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from millstream.core.engine.step_outcome import Snapshot
from millstream.core.model.errors import CheckpointError, CoPartitioningError, IncompatibleTopologyError
from millstream.core.model.positions import Offsets
from millstream.core.ports import PartitionGrouper, TopicFacts
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.runtime.changes import recreated, recreated_error
from millstream.core.state.division.entry_keys import entry_keys
from millstream.core.state.division.shares import Division, divisions
from millstream.core.state.segments.log import decode_manifest
from millstream.core.topology.analysis.ranges import with_ranges_of_state
from millstream.core.topology.evolution import (
    Lineage,
    Remembered,
    appeared,
    changed_kinds,
    check_kinds,
    check_stores,
    continued,
    parts_of,
)
from millstream.core.topology.layout import Layout, lay_out
from millstream.core.topology.patterns import source_of
from millstream.core.topology.plan import Plan
from millstream.core.topology.routing import Routing, check_routing, left_by, routing_of
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress
from millstream.drivers.spark.executor.snapshots import TaskMemory
from millstream.edge.planning.plans import check_positions_of_ranges

log = logging.getLogger("millstream.application")


@dataclass(frozen=True)
class Continuity:
    """A plan as it continues a checkpoint; the checkpoint may be new.

    Attributes:
        plan: The plan, with its sub-topologies numbered as in the checkpoint.
    """

    plan: Plan
    remembered: Remembered
    renamed_stores: Mapping[str, str]

    def laid_out(self, external: Mapping[str, int], grouper: PartitionGrouper) -> Layout:
        """Lay out the plan; repartitions keep their partition counts.

        Raises:
            IncompatibleTopologyError: If records would reach a store in different tasks than before.
        """
        layout = lay_out(self.plan, external, grouper, self.remembered.internal)
        check_routing(self.remembered.routing, routing_of(self.plan, layout), divides=True)
        for number in self.divisions():
            entry_keys(self.plan, self.plan.subtopologies[number])
        return layout

    def laid_out_evenly(self, external: Mapping[str, int], grouper: PartitionGrouper) -> Layout:
        """Lay out the plan; if topics of a store have unequal numbers of partitions, without those that the checkpoint does not have.

        Raises:
            CoPartitioningError: If the numbers in the checkpoint are unequal as well.
        """
        try:
            return self.laid_out(external, grouper)
        except CoPartitioningError as error:
            read = {topic: len(partitions) for topic, partitions in self.remembered.positions.items()}
            known = {topic: min(count, read.get(topic, count)) for topic, count in external.items()}
            try:
                layout = self.laid_out(known, grouper)
            except CoPartitioningError:
                raise error from None
            warn_of_uneven(error)
            return layout

    def divisions(self) -> dict[int, Division]:
        """Return how to divide the state of tasks among more key ranges, by sub-topology."""
        return divisions(self.plan, self.remembered)

    def running_on(self, layout: Layout) -> Continuity:
        """Return what a restart in place continues: repartitions keep their partition counts, and partitions their tasks."""
        internal = {topic: layout.partitions[topic] for topic in self.plan.internal_topics}
        routing = routing_of(self.plan, layout)
        return replace(self, remembered=replace(self.remembered, internal=internal, routing=routing))

    def lineage(self, layout: Layout, facts: Mapping[str, TopicFacts]) -> Lineage:
        ids = {topic: fact.id for topic, fact in facts.items() if fact.id}
        return Lineage(
            parts_of(self.plan, layout, self.remembered.parts),
            # Also of topics that are not read now, because the checkpoint keeps their positions.
            {**self.remembered.topic_ids, **ids},
            self.renamed_stores,
            appeared(self.plan, self.remembered),
            routing_of(self.plan, layout),
        )

    def left_topics(self, layout: Layout) -> frozenset[str]:
        """Return the topics that moved to other tasks or are no longer read."""
        before = self.remembered.routing
        home = self.plan.subtopology_of
        renumbered = {
            topic
            for number, part in self.remembered.parts.items()
            for topic in before.routes.keys() & part.topics
            if topic in home and home[topic].id != number
        }
        sources = [source for sub in self.plan.subtopologies for source in sub.sources]
        return frozenset(
            topic
            for topic in left_by(before, routing_of(self.plan, layout)) | renumbered
            # Otherwise a pattern still matches the topic, which is only missing for now.
            if topic in home or source_of(sources, topic) is None
        )

    def check_fits(self, plan: Plan, external: Mapping[str, int], grouper: PartitionGrouper) -> None:
        """Check that the program can continue with changed topics."""
        kept = with_ranges_of_state(plan, self.remembered.routing)
        replace(self, plan=kept).laid_out(external, grouper)

    def check_topics(self, facts: Mapping[str, TopicFacts], *, restart_recreated: bool) -> None:
        """Refuse recreated topics, unless they may be read from their beginning.

        Raises:
            TopicRecreatedError: If a topic that the program names was recreated.
        """
        ids = {topic: fact.id for topic, fact in facts.items() if topic not in self.plan.chosen_topics}
        again = recreated(self.remembered.topic_ids, ids)
        if again and not restart_recreated:
            raise recreated_error(again)


def warn_of_uneven(error: CoPartitioningError) -> None:
    log.warning(
        "continuing without the new partitions until the topics have equal numbers of partitions: %s", error
    )


def continuity(
    plan: Plan,
    progress: CheckpointProgress | None,
    renamed_stores: Mapping[str, str],
    *,
    exactly_once: bool,
) -> Continuity:
    """Fit a plan to a checkpoint. It keeps the key ranges of the checkpoint's state.

    Raises:
        StoreError: If a store does not fit its state.
        SettingsError: If, under exactly once, key ranges of the checkpoint do not publish their positions.
    """
    before = Remembered()
    if progress is not None:
        previous = Remembered.from_offset(progress.previous)
        before = Remembered.from_offset(progress.planned).with_parts_of(previous)
    before = before.renamed(renamed_stores, plan.application_id)
    numbered = continued(plan, before.parts)
    check_stores(before.stores, numbered.store_fingerprints())
    kept = with_ranges_of_state(numbered, before.routing)
    if exactly_once:
        check_positions_of_ranges(kept)
    return Continuity(kept, before, renamed_stores)


def rebuilds(progress: CheckpointProgress | None, can_rebuild: Callable[[], bool]) -> bool:
    """Return whether tasks rebuild their stores from changelog topics, or have to complete a rebuild that was interrupted.

    Args:
        can_rebuild: Returns whether an application without state can continue from changelog topics.
    """
    if progress is None:
        return can_rebuild()
    planned = BatchPlan.from_json(progress.planned)
    if progress.batch == 0 and planned.tick == 0:
        # If there is nothing to plan yet, Spark begins a checkpoint with an empty micro-batch, which starts no task.
        return can_rebuild()
    begun = BatchPlan.from_json(progress.processed).tick > 0
    return not begun and planned.initialization is not None and planned.initialization.rebuild


def check_finished(now: Continuity, manifests: Callable[[], Iterable[bytes]]) -> None:
    """Refuse to drop in-flight records of a removed asynchronous operator.

    Args:
        manifests: Reads the manifests of the tasks; called only if such an operator was removed.
    """
    gone = now.remembered.unfinished.keys() - now.plan.keepers.keys()
    if not gone:
        return
    left = _unfinished(now, manifests)
    for store in sorted(gone):
        if left[store]:
            raise IncompatibleTopologyError(
                f"the topology no longer has the asynchronous operator that keeps its unfinished records in {store!r}, and "
                f"{left[store]:,} of them are waiting there. Run the old topology until they are finished and stop it with "
                "stop(drain_timeout_s=...); if the operator was only renamed, map the store's old name to its new "
                "one with renamed_stores={...}; or set on_removed_operator='drop', if these records may be lost"
            )


def check_same_kinds(now: Continuity, manifests: Callable[[], Iterable[bytes]]) -> None:
    """Refuse that an operator of another kind continues in-flight records.

    Args:
        manifests: Reads the manifests of the tasks; called only if the kind of an operator has changed.
    """
    before, kinds = now.remembered.unfinished, now.plan.keepers
    if changed_kinds(before, kinds):
        check_kinds(before, kinds, _unfinished(now, manifests))


def _unfinished(now: Continuity, manifests: Callable[[], Iterable[bytes]]) -> Counter[str]:
    """Return the number of in-flight records of all tasks by store."""
    left: Counter[str] = Counter()
    for manifest in manifests():
        _, data = decode_manifest(manifest)
        left.update(TaskMemory.from_json(data, now.renamed_stores).unfinished or {})
    return left


def check_published(now: Continuity, layout: Layout, published: Iterable[bytes]) -> None:
    """Refuse to rebuild stores from changelog topics in different tasks than those that published them.

    Args:
        published: Each task's memory at its last publication, as JSON.
    """
    routing = routing_of(now.plan, layout)
    for remembered in map(json.loads, published):
        check_routing(Routing.from_json(remembered["routing"]), routing)


def check_held(now: Continuity, layout: Layout, manifests: Callable[[], Iterable[bytes]]) -> None:
    """Refuse to drop buffered records whose topics moved to other tasks or are no longer read.

    Args:
        manifests: Reads the manifests of the tasks; called only if there is such a topic.
    """
    left = now.left_topics(layout)
    if not left:
        return
    held: Counter[str] = Counter()
    for manifest in manifests():
        _, data = decode_manifest(manifest)
        snapshot = TaskMemory.from_json(data).snapshot or Snapshot()
        for queue, records in snapshot.buffered.items():
            held[queue.partition.topic] += len(records)
    for topic in sorted(left):
        if held[topic]:
            raise IncompatibleTopologyError(
                f"tasks have buffered {held[topic]:,} records of {topic!r}, which wait for other inputs, and this topology would not process them: "
                "it no longer reads the topic, or reads it in other tasks. Run the old topology to its end first, with "
                "run(until='end'), which processes them"
            )


def check_shared(plan: Plan, location: str, committed: Offsets) -> None:
    """Refuse that a standby without a checkpoint takes over from a driver that had one, and processes all records again.

    Args:
        location: The checkpoint of this driver, which is empty.
        committed: The committed offsets of the group.

    Raises:
        CheckpointError: If the stores cannot be rebuilt from changelog topics, and the group has committed offsets.
    """
    if plan.store_fingerprints().keys() <= plan.changelogs.keys() or not any(committed.values()):
        return
    raise CheckpointError(
        f"this driver was a standby, but its checkpoint {location} is empty, while the driver before it has committed offsets: they do not "
        "share a checkpoint. Nothing was processed. Start all drivers with one checkpoint_location that each of them can "
        "reach, in a shared directory or an object store"
    )


def check_drained(
    plan: Plan, progress: CheckpointProgress | None, broker: Broker, existing: Mapping[str, int]
) -> None:
    """Refuse to leave unread records in an internal topic that the topology no longer reads."""
    before = Remembered.from_offset({} if progress is None else progress.processed)
    left = {
        topic: existing[topic]
        for topic in before.internal
        if topic in before.positions and topic in existing and topic not in plan.broker_topics
    }
    ends = broker.end_offsets(left)
    for topic, partitions in ends.items():
        waiting = sum(
            end - before.positions[topic].get(partition, 0) for partition, end in partitions.items()
        )
        if waiting > 0:
            raise IncompatibleTopologyError(
                f"the topology no longer reads the internal topic {topic!r}, which holds {waiting} records that have not been "
                "processed. Run the old topology to its end first, with run(until='end'), which empties it; or delete the "
                "topic, if those records may be lost"
            )


def check_interrupted(plan: Plan, progress: CheckpointProgress | None, *, exactly_once: bool) -> None:
    """Refuse to repeat an interrupted micro-batch whose records would be sent by other tasks than at the first attempt.

    Exactly once, the first attempt may have committed the transactions of some tasks. What these tasks send is not sent again. Records that
    have moved to or from them would be lost, or have results twice.

    Raises:
        IncompatibleTopologyError: If a repartition has become a topic, or a topic has moved to another sub-topology.
    """
    if progress is None or progress.committed or not exactly_once:
        return
    planned = BatchPlan.from_json(progress.planned)
    if planned.initialization is not None:  # it reads nothing
        return
    before, home = planned.topology, plan.subtopology_of
    became_topics = (plan.repartition_topics & before.internal.keys()) - before.positions.keys()
    numbers = {topic: number for number, part in before.parts.items() for topic in part.topics}
    moved = {topic for topic, number in numbers.items() if topic in home and home[topic].id != number}
    for topic in sorted(became_topics | moved):
        raise IncompatibleTopologyError(
            f"records of {topic!r} would be sent by other tasks than before, but the last micro-batch of the checkpoint, "
            f"{progress.batch}, was interrupted, and must be completed as it was planned. Start the application without the change "
            "of its topology, stop it once it is running, and start it again with the change"
        )
