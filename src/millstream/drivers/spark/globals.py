"""Global positions: how far into the topics of global stores a micro-batch sees.

The planner asks the brokers for the ends of these topics and puts them into the offset of the micro-batch, beside the
positions of the inputs:

    {"topics": ..., "global": {topic: {partition: end}}, ...}

So a micro-batch that is run again sees the same tables. It asks *after* it has asked for the ends of the inputs: a record
that was sent when a change of the table had been acknowledged sees that change. New records in these topics alone are no
reason for a micro-batch, because a table that changes sends nothing. A row of its own takes the positions to each task that
may read a global store; other tasks, and topologies without such stores, have nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from millstream.core.model.errors import OffsetsLostError
from millstream.core.model.ids import TaskId
from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.core.runtime.changes import recreated
from millstream.drivers.spark import wire
from millstream.drivers.spark.spec import SourceSpec, TopologySpec

FIELD = "global"


class GlobalEnds:
    """What the planner knows of the topics of global stores. Owned by the planner."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._counts = spec.topology.global_partitions
        self._ends: Offsets | None = None

    def ask(self) -> None:
        """Ask how far the topics can be read now.

        Raises:
            BrokerUnavailableError: If no broker answers; what was known before stays.
            TopicNotFoundError: If a topic, or a partition of it, is gone.
        """
        if self._counts:
            self._ends = self._spec.broker.end_offsets(self._counts)

    def unknown(self, start: Mapping[str, Any]) -> bool:
        """Return whether no micro-batch can be planned yet, because nobody has ever said how far a topic can be read."""
        return self._ends is None and bool(set(self._counts) - set(self._planned(start)))

    def onto(
        self,
        start: dict[str, Any],
        planned: dict[str, Any],
        recreated_among: Callable[[Collection[str]], bool],
    ) -> dict[str, Any]:
        """Put the positions onto a planned offset.

        Args:
            start: The offset before.
            planned: The offset.
            recreated_among: Tells whether topics were made again, and has told the application if so.

        Returns:
            The offset with the positions; ``start`` if the application is about to start the query anew.

        Raises:
            TopicRecreatedError: If a topic was made again and is not to be read.
            OffsetsLostError: If a topic has lost its newest records, and that is not to be skipped.
        """
        if not self._counts:
            return planned
        before, ends = self._planned(start), self._ends or {}
        shorter = {topic for topic in before if _is_shorter(before[topic], ends.get(topic, before[topic]))}
        if shorter:  # than what could be read, but not necessarily than what there is
            there = self._spec.broker.log_end_offsets({topic: self._counts[topic] for topic in shorter})
            lost = {topic for topic in shorter if _is_shorter(before[topic], there[topic])}
            if lost and recreated_among(lost):
                return start
            if lost and not self._spec.skip_lost:
                raise _lost(lost)
            ends = {**ends, **{topic: before[topic] for topic in shorter - lost}}
        return {**planned, FIELD: positions_to_json({**before, **ends})}

    def _planned(self, start: Mapping[str, Any]) -> Offsets:
        """Return the positions of an offset, without those of topics that were made again since."""
        again = recreated(start.get("topic_ids", {}), self._spec.topology.lineage.topic_ids)
        known = positions_from_json(start.get(FIELD, {}))
        return {topic: at for topic, at in known.items() if topic in self._counts and topic not in again}


def positions_text(offset: Mapping[str, Any], spec: SourceSpec) -> bytes:
    """Return the global positions of a micro-batch as text; empty without global stores.

    A micro-batch that was planned by a topology without one of the stores, and has to be run by one that has it, sees that
    store as it is now: nobody has seen it before.

    Args:
        offset: Where the micro-batch ends.
        spec: The application.
    """
    counts = spec.topology.global_partitions
    if not counts:
        return b""
    known = positions_from_json(offset.get(FIELD, {}))
    new = {topic: count for topic, count in counts.items() if topic not in known}
    known |= spec.broker.end_offsets(new) if new else {}
    return json.dumps(positions_to_json({topic: known[topic] for topic in counts})).encode()


def with_positions(
    rows: Iterable[pa.RecordBatch], topology: TopologySpec, positions: bytes
) -> Iterator[pa.RecordBatch]:
    """Put the global positions in front of the first row of each task that may read a global store.

    Args:
        rows: Chunk rows of one reader.
        topology: The application.
        positions: What :func:`positions_text` gave.
    """
    told: set[str] = set()
    for batch in rows:
        for row in batch.select(["group", "task", "batch", "now_ms", "ahead_ms"]).to_pylist():
            task = row["task"]
            if task not in told and _reads(topology, TaskId.parse(task)):
                cells = (
                    row["group"],
                    wire.GLOBAL,
                    task,
                    "",
                    0,
                    "",
                    0,
                    0,
                    row["batch"],
                    row["now_ms"],
                    row["ahead_ms"],
                )
                yield wire.arrow_rows([(*cells, positions)])
            told.add(task)
        yield batch


def positions_from(text: bytes) -> Offsets:
    """Read what :func:`positions_text` gave."""
    return positions_from_json(json.loads(text))


def _reads(topology: TopologySpec, task: TaskId) -> bool:
    return bool(topology.plan.subtopologies[task.subtopology].global_stores)


def _is_shorter(before: Mapping[int, int], now: Mapping[int, int]) -> bool:
    return any(now.get(partition, 0) < at for partition, at in before.items())


def _lost(topics: Collection[str]) -> OffsetsLostError:
    named = ", ".join(map(repr, sorted(topics)))
    return OffsetsLostError(
        f"the topic {named} of a global store ends before the offsets that its store was filled to: it has lost its newest "
        "records (an unclean leader election, a restored backup), or this is another cluster. To go on with what the topic "
        "holds now set on_lost_offsets='skip'; the store is then filled again from its beginning"
    )
