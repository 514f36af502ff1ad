"""Reset: an application starts over, at chosen offsets and with empty stores.

After a reset, the next start finds no checkpoint, and the group's offsets carry a mark (``broker.RESET``) in their metadata. Without
the mark, an application with stores does not begin at its group's offsets, because it cannot know that its empty stores belong to them.
The first commit of a partition removes its mark; the marks count only while all partitions have one.

A reset changes first the offsets, then the internal topics, the checkpoint and the local copies. With this order, an interrupted reset is
noticed: an application that starts in between either stops with TopicRecreatedError, or continues as if there had been no reset. Repeat
the same reset to complete it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.core.fanout.epochs import primary_of
from millstream.core.model.errors import CheckpointError, SettingsError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, flat
from millstream.core.runtime.reset import LogOffsets, Move, Target, internal_topics, moves, with_fan_outs
from millstream.core.topology.evolution import Remembered
from millstream.drivers.kafka.broker import RESET, Broker
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, Files, progress_of


@dataclass(frozen=True)
class ResetRequest:
    """What to reset.

    Attributes:
        input_topics: The topics whose offsets change; empty for all topics that the application has read.
        internal_topics: The internal topics to delete; empty for all internal topics of the application.
    """

    application_id: str
    target: Target
    input_topics: Sequence[str] = ()
    internal_topics: Sequence[str] = ()


@dataclass(frozen=True)
class ResetPlan:
    """What a reset will do.

    Attributes:
        kept_internal: Positions in internal topics that stay.
        others: Topics with matching names that belong to another group, with the name of that group.
        progress: The progress of the checkpoint; None without one.
        local_copies: The directory of local copies on this host; None without one.
        damage: Why the checkpoint cannot be read, in which case only the group's committed offsets are known; empty if it can.
    """

    application_id: str
    moves: tuple[Move, ...]
    internal: dict[str, int]
    kept_internal: Offsets
    others: dict[str, str]
    progress: CheckpointProgress | None
    stores: tuple[str, ...]
    local_copies: Path | None
    damage: str = ""


def planned(request: ResetRequest, broker: Broker, files: Files, home: Path) -> ResetPlan:
    """Plan a reset without changing anything.

    Raises:
        SettingsError: If nothing is known about the application, or an internal topic belongs to another one.
    """
    progress, damage = read_progress(files)
    known = Remembered.from_offset({} if progress is None else progress.planned)
    existing = broker.partition_counts()
    current = _current(progress, broker, existing)
    own, others = internal_topics(request.application_id, existing, broker.groups())
    own = sorted({*own, *(topic for topic in known.internal if topic in existing)})
    others = {topic: group for topic, group in others.items() if topic not in own}
    deleted = _subset(request.internal_topics, own)
    inputs = with_fan_outs({*current, *request.input_topics} - {*own}, existing)
    read = {topic: existing[topic] for topic in inputs if topic in existing}
    _check_inputs(request, read, existing)
    at_time = broker.offsets_at(read, request.target.value) if request.target.kind == "time" else {}
    places = LogOffsets(broker.begin_offsets(read), broker.end_offsets(read), at_time)
    moved = with_fan_outs(request.input_topics, existing) or inputs
    if request.target.kind == "shift":  # a fan-out topic that was not read yet has no position to shift
        moved = {topic for topic in moved if topic in current or primary_of(topic) is None}
    tasks = home / "tasks"
    return ResetPlan(
        request.application_id,
        tuple(moves(request.target, moved, current, places)),
        {topic: existing[topic] for topic in deleted},
        {topic: current[topic] for topic in own if topic not in deleted and topic in current},
        others,
        progress,
        tuple(known.stores),
        tasks if tasks.is_dir() else None,
        damage,
    )


def read_progress(files: Files) -> tuple[CheckpointProgress | None, str]:
    """Read the progress of the checkpoint, or why it cannot be read: a reset can also replace a damaged checkpoint."""
    try:
        return progress_of(files), ""
    except CheckpointError as error:
        return None, error.message


def _current(progress: CheckpointProgress | None, broker: Broker, existing: dict[str, int]) -> Offsets:
    """Return the processed positions: those of the checkpoint, and the group's offsets where the checkpoint has none."""
    # Otherwise the answer would wait for the open transaction of an application that was killed.
    current = replace(broker, read_committed=False).committed_offsets(existing)
    done = Remembered.from_offset({} if progress is None else progress.processed)
    for topic, partitions in done.positions.items():
        current[topic] = {**current.get(topic, {}), **partitions}
    return {topic: partitions for topic, partitions in current.items() if topic in existing}


def _subset(wanted: Sequence[str], own: Sequence[str]) -> Sequence[str]:
    foreign = [topic for topic in wanted if topic not in own]
    if foreign:
        raise SettingsError(
            f"{', '.join(map(repr, foreign))} is not an internal topic of this application; it has "
            f"{', '.join(map(repr, own)) or 'none'}"
        )
    return wanted or own


def _check_inputs(request: ResetRequest, read: dict[str, int], existing: dict[str, int]) -> None:
    missing = [topic for topic in request.input_topics if topic not in existing]
    if missing:
        raise TopicNotFoundError(
            f"topic {', '.join(map(repr, missing))} does not exist on the broker; correct --input-topic"
        )
    internal = [topic for topic in request.input_topics if topic not in read]
    if internal:
        raise SettingsError(
            f"{', '.join(map(repr, internal))} is an internal topic of the application, which a reset deletes; --input-topic "
            "names topics that the application reads and does not write"
        )
    if not read:
        raise SettingsError(
            f"application {request.application_id!r} was not found: it has no checkpoint here, and its group has no "
            "committed offsets on this broker. Correct the application id, --bootstrap-servers, --state-dir or "
            "--checkpoint-location, or name the topics it reads with --input-topic"
        )


def execute_reset(plan: ResetPlan, broker: Broker, files: Files) -> None:
    """Execute a plan.

    Raises:
        BrokerUnavailableError: If the broker does not answer; repeat the reset to complete it.
    """
    begin = {TopicPartition(move.topic, move.partition): move.after for move in plan.moves}
    fresh = {TopicPartition(t, p): 0 for t, count in plan.internal.items() for p in range(count)}
    broker.commit({**begin, **flat(plan.kept_internal), **fresh}, metadata=RESET)
    for topic in plan.internal:
        broker.delete_topic(topic)
    files.delete()
    if plan.local_copies is not None:
        shutil.rmtree(plan.local_copies)
