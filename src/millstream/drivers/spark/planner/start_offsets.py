"""Start offsets: where a query without a checkpoint begins, and where to begin in a topic that is not in the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

from millstream.core.model.durations import millis
from millstream.core.model.errors import NoOffsetForPartitionError
from millstream.core.model.positions import Offsets
from millstream.core.topology.nodes import OffsetReset
from millstream.drivers.spark.spec import SourceSpec

log = logging.getLogger("millstream.source")

_NOT_OF_THE_STATE = "there is no checkpoint, so stores begin empty and do not match the group's offsets"
_NONE_COMMITTED = "the group has no committed offset for it"


def first_offsets(spec: SourceSpec, counts: Mapping[str, int]) -> Offsets:
    """Return the group's committed offsets if there is no state to lose, and otherwise the offsets of the offset reset.

    Raises:
        NoOffsetForPartitionError: If an offset reset is "none" and a partition has no committed offset.
    """
    rebuild = spec.initialization.rebuild
    state_is_lost = bool(spec.topology.plan.store_fingerprints()) and not rebuild
    chosen = spec.broker.reset_offsets(counts)
    if chosen:
        log.warning("the application was reset: starting at the chosen offsets, with empty stores")
        return _positions(spec, counts, chosen)
    committed = (spec.broker.taken_offsets if rebuild else spec.broker.committed_offsets)(counts)
    if not state_is_lost or not any(committed.values()):
        return _positions(spec, counts, committed)
    positions = _positions(spec, counts, {}, _NOT_OF_THE_STATE)
    log.warning(
        "the group has committed offsets, but there is no checkpoint with the matching state: starting over from the %s "
        "offsets",
        spec.offset_reset,
    )
    return positions


def offsets_of_new(spec: SourceSpec, counts: Mapping[str, int]) -> Offsets:
    """Return the first offsets of topics that are not in the checkpoint."""
    strict = {topic: count for topic, count in counts.items() if _reset(spec, topic) == "none"}
    return _positions(spec, counts, spec.broker.committed_offsets(strict) if strict else {})


def updated(positions: Offsets, others: Offsets) -> Offsets:
    """Return the positions, replaced by the other offsets where those exist."""
    return {topic: {**partitions, **others.get(topic, {})} for topic, partitions in positions.items()}


def _positions(
    spec: SourceSpec, counts: Mapping[str, int], known: Offsets, why: str = _NONE_COMMITTED
) -> Offsets:
    """Return the known positions, completed by the offset reset."""
    begin, end = spec.broker.begin_offsets(counts), spec.broker.end_offsets(counts)
    positions: Offsets = {}
    for topic in counts:
        reset = "earliest" if _continues_split_partition(spec, topic, known) else _reset(spec, topic)
        if reset == "none":
            _check_known(spec, topic, counts[topic], known, why)
        if isinstance(reset, timedelta):
            since = spec.broker.offsets_at({topic: counts[topic]}, max(spec.clock() - millis(reset), 0))
            positions[topic] = {**end[topic], **since.get(topic, {})}
        else:
            positions[topic] = dict(end[topic] if reset == "latest" else begin[topic])
    return updated(positions, known)


def _reset(spec: SourceSpec, topic: str) -> OffsetReset:
    """Return the offset reset of a topic. Internal topics are read from their beginning."""
    plan = spec.topology.plan
    if topic in plan.internal_topics:
        return "earliest"
    source = next(each for each in plan.subtopology_of[topic].sources if topic in each.topics)
    return source.offset_reset or spec.offset_reset


def _continues_split_partition(spec: SourceSpec, topic: str, known: Offsets) -> bool:
    """Return whether a topic continues a split partition whose position is known. No offset reset skips its records."""
    split = spec.topology.plan.fan_outs.get(topic)
    return split is not None and split.partition in known.get(split.topic, {})


def _check_known(spec: SourceSpec, topic: str, count: int, known: Offsets, why: str) -> None:
    missing = [partition for partition in range(count) if partition not in known.get(topic, {})]
    if missing:
        raise NoOffsetForPartitionError(
            f"there is no start offset for topic {topic!r}, partition {', '.join(map(str, missing))}: {why}, and the "
            "offset reset of the topic is 'none'. Choose the start position with `millstream reset "
            f"{spec.topology.plan.application_id} --to-earliest` or another target, or set offset_reset at the source, or "
            "auto_offset_reset, to 'earliest' or 'latest'"
        )
