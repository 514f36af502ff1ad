"""Reset: an application starts over, at chosen offsets and with empty stores.

The next start finds no checkpoint, and the group's offsets with a mark (``broker.RESET``) in their metadata. Without the
mark, an application with stores does not begin at its group's offsets, because nothing says that empty stores belong to
them; with it, somebody has said so. The mark is on the broker, so it works wherever the next start is; it is gone from a
partition when the application commits it, and is believed only while all partitions have it.

The order in which things go is such that a reset that is cut off is noticed: offsets, internal topics, checkpoint, local
copies. Started in between, the application stops with TopicRecreatedError or goes on as if nothing had been asked for; the
same reset, done again, completes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.core.model.errors import CheckpointError, SettingsError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.runtime.reset import LogOffsets, Move, Target, internal_topics, moves
from millstream.core.topology.evolution import Remembered
from millstream.drivers.kafka.broker import RESET, Broker
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, Files, progress_of


@dataclass(frozen=True)
class ResetRequest:
    """What is to be reset.

    Attributes:
        input_topics: The topics to move; empty for all that the application has read.
        internal_topics: The internal topics to delete; empty for all of the application.
    """

    application_id: str
    target: Target
    input_topics: Sequence[str] = ()
    internal_topics: Sequence[str] = ()


@dataclass(frozen=True)
class ResetPlan:
    """What a reset will do.

    Attributes:
        internal: Partition counts of the internal topics to delete.
        kept_internal: Positions in internal topics that stay.
        others: Topics with a matching name that belong to another group, and that group.
        progress: How far the checkpoint has come; None without one.
        local_copies: Their directory on this host; None without one.
        damage: Why the checkpoint cannot be read; empty if it can. Then only the group's committed offsets are known.
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
    """Plan a reset; changes nothing.

    Args:
        home: The application's directory on this host.

    Raises:
        TopicNotFoundError: If an input topic does not exist.
        SettingsError: If nothing is known of the application, or an internal topic is not its own.
    """
    progress, damage = read_progress(files)
    known = Remembered.from_offset({} if progress is None else progress.planned)
    existing = broker.partition_counts()
    current = _current(progress, broker, existing)
    own, others = internal_topics(request.application_id, existing, broker.groups())
    own = sorted({*own, *(topic for topic in known.internal if topic in existing)})
    others = {topic: group for topic, group in others.items() if topic not in own}
    deleted = _subset(request.internal_topics, own)
    read = {
        topic: existing[topic] for topic in {*current, *request.input_topics} - {*own} if topic in existing
    }
    _check_inputs(request, read, existing)
    at_time = broker.offsets_at(read, request.target.value) if request.target.kind == "time" else {}
    places = LogOffsets(broker.begin_offsets(read), broker.end_offsets(read), at_time)
    tasks = home / "tasks"
    return ResetPlan(
        request.application_id,
        tuple(moves(request.target, request.input_topics or read, current, places)),
        {topic: existing[topic] for topic in deleted},
        {topic: current[topic] for topic in own if topic not in deleted and topic in current},
        others,
        progress,
        tuple(known.stores),
        tasks if tasks.is_dir() else None,
        damage,
    )


def read_progress(files: Files) -> tuple[CheckpointProgress | None, str]:
    """Read how far the checkpoint has come, or why it cannot be read: a reset replaces a damaged one, too."""
    try:
        return progress_of(files), ""
    except CheckpointError as error:
        return None, error.message


def _current(progress: CheckpointProgress | None, broker: Broker, existing: dict[str, int]) -> Offsets:
    """Return the processed positions: the checkpoint's, and the group's where the checkpoint has none."""
    current = broker.committed_offsets(existing)
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
            f"the broker has no topic {', '.join(map(repr, missing))}; correct --input-topic"
        )
    internal = [topic for topic in request.input_topics if topic not in read]
    if internal:
        raise SettingsError(
            f"{', '.join(map(repr, internal))} is an internal topic of the application, which a reset deletes; --input-topic "
            "names topics that the application reads and does not write"
        )
    if not read:
        raise SettingsError(
            f"there is no trace of an application {request.application_id!r}: it has no checkpoint here, and the group has no "
            "offsets at this broker. Correct the application id, --bootstrap-servers, --state-dir or --checkpoint-location, or "
            "name the topics it reads with --input-topic"
        )


def execute_reset(plan: ResetPlan, broker: Broker, files: Files) -> None:
    """Execute a plan.

    Raises:
        BrokerUnavailableError: If the broker does not answer; a repeated reset completes this one.
    """
    begin = {TopicPartition(move.topic, move.partition): move.after for move in plan.moves}
    kept = {
        TopicPartition(t, p): offset
        for t, offsets in plan.kept_internal.items()
        for p, offset in offsets.items()
    }
    fresh = {TopicPartition(t, p): 0 for t, count in plan.internal.items() for p in range(count)}
    broker.commit({**begin, **kept, **fresh}, metadata=RESET)
    for topic in plan.internal:
        broker.delete_topic(topic)
    files.delete()
    if plan.local_copies is not None:
        shutil.rmtree(plan.local_copies)
