"""Global ends: how far a micro-batch sees into the topics of global stores.

The planner asks the brokers for the ends of these topics and stores them in the plan of the micro-batch, beside the positions of the
inputs. A repeated micro-batch therefore sees the same tables. The planner asks for global ends *after* the ends of the inputs: a record
sent after the acknowledgement of a table change sees that change. New records in global topics alone do not cause a micro-batch,
because a change of a global table produces no output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from millstream.core.model.errors import OffsetsLostError
from millstream.core.model.positions import Offsets
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.runtime.changes import recreated
from millstream.drivers.spark.spec import SourceSpec


class GlobalEnds:
    """The ends of the topics of global stores. Owned by the planner."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._counts = spec.topology.global_partitions
        self._ends: Offsets | None = None

    def ask(self) -> None:
        """Ask the brokers how far the topics can be read.

        Raises:
            BrokerUnavailableError: If no broker answers. The previous ends are kept.
        """
        if self._counts:
            self._ends = self._spec.broker.end_offsets(self._counts)

    def unknown(self, start: BatchPlan) -> bool:
        """Return whether the end of a topic has never been known, so that no micro-batch can be planned."""
        return self._ends is None and bool(set(self._counts) - set(self._planned(start)))

    def with_ends(
        self, planned: BatchPlan, start: BatchPlan, recreated_among: Callable[[Collection[str]], bool]
    ) -> BatchPlan | None:
        """Add the global ends to a plan.

        Args:
            recreated_among: Returns whether topics were recreated. It first informs the application.

        Returns:
            The plan with the ends, or None if the application is about to restart the query.

        Raises:
            TopicRecreatedError: If a topic was recreated and may not be read.
            OffsetsLostError: If a topic has lost its newest records and they may not be skipped.
        """
        if not self._counts:
            return planned
        before, ends = self._planned(start), self._ends or {}
        shorter = {topic for topic in before if _is_shorter(before[topic], ends.get(topic, before[topic]))}
        if shorter:  # the log itself may be as long as before
            log_ends = self._spec.broker.log_end_offsets({topic: self._counts[topic] for topic in shorter})
            lost = {topic for topic in shorter if _is_shorter(before[topic], log_ends[topic])}
            if lost and recreated_among(lost):
                return None
            if lost and not self._spec.skip_lost:
                raise _lost(lost)
            ends = {**ends, **{topic: before[topic] for topic in shorter - lost}}
        return replace(planned, global_ends={**before, **ends})

    def _planned(self, start: BatchPlan) -> Offsets:
        """Return the ends in a plan, without topics that have been recreated since."""
        known = _still_valid(start, self._spec)
        return {topic: ends for topic, ends in known.items() if topic in self._counts}


def global_ends(plan: BatchPlan, spec: SourceSpec) -> Offsets | None:
    """Return the global ends of a micro-batch, or None without global stores.

    An edited topology may have a store that the plan of the micro-batch does not contain. The micro-batch then sees the current content
    of that store, because no micro-batch has seen it before. The same applies to a topic that was recreated after the plan.
    """
    counts = spec.topology.global_partitions
    if not counts:
        return None
    known = _still_valid(plan, spec)
    new = {topic: count for topic, count in counts.items() if topic not in known}
    known = {**known, **(spec.broker.end_offsets(new) if new else {})}
    return {topic: known[topic] for topic in counts}


def _still_valid(plan: BatchPlan, spec: SourceSpec) -> Offsets:
    """Return the ends in a plan, without those of topics that have been recreated since."""
    again = recreated(plan.topology.topic_ids, spec.topology.lineage.topic_ids)
    return {topic: ends for topic, ends in (plan.global_ends or {}).items() if topic not in again}


def _is_shorter(before: Mapping[int, int], now: Mapping[int, int]) -> bool:
    return any(now.get(partition, 0) < end for partition, end in before.items())


def _lost(topics: Collection[str]) -> OffsetsLostError:
    named = ", ".join(map(repr, sorted(topics)))
    return OffsetsLostError(
        f"the topic {named} of a global store ends before the offsets up to which its store was filled: it has lost its "
        "newest records (an unclean leader election, a restored backup), or bootstrap_servers names another cluster. To "
        "continue with the current content of the topic, set on_lost_offsets='skip'; the store is then filled again from "
        "the topic's beginning"
    )
