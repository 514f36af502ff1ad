"""Ownership: the marks in Kafka decide whether a start under exactly once may deliver.

An application delivers from one checkpoint. Every mark contains the id of that checkpoint (see ``millstream.drivers.kafka.marks``). From
the marks, a start learns whether another checkpoint has delivered for this application: a checkpoint on another host, or a lost one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from millstream.core.model.errors import OtherCheckpointError
from millstream.core.ports import BatchId
from millstream.core.runtime.batch_plan import batch_id
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.marks import Mark, ahead_of
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress
from millstream.edge.broker.topic_preparation import TopicPreparation
from millstream.edge.settings.settings import Settings


@dataclass(frozen=True)
class StartFacts:
    """The facts that decide whether a start without its own mark in Kafka may deliver.

    Attributes:
        begun: The id that an earlier start on this host chose for a new checkpoint; empty if there was none.
        goes_on: Returns whether the application can continue from Kafka alone, without the other checkpoint.
        shuffled: The repartitions through Spark's shuffle. The transaction that commits the offset of a record is not the one that sends
            its results.
    """

    application_id: str
    location: str
    begun: str
    take_over: bool
    was_reset: Callable[[], bool]
    goes_on: Callable[[], bool]
    shuffled: tuple[str, ...]


def start_facts(
    plan: Plan, settings: Settings, begun: str, broker: Broker, existing: Mapping[str, int]
) -> StartFacts:
    """Return the facts for a start; the broker is queried only when a fact is needed."""
    read = {topic: existing[topic] for topic in plan.broker_topics if topic in existing}
    asked = replace(broker, read_committed=False)  # does not wait for open transactions of a dead owner
    topics = TopicPreparation(asked, settings.replication_factor)
    return StartFacts(
        plan.application_id,
        settings.checkpoint(plan.application_id),
        begun,
        settings.on_other_checkpoint == "take_over",
        was_reset=lambda: bool(asked.reset_offsets(read)),
        goes_on=lambda: not plan.store_fingerprints() or topics.can_rebuild(plan, existing),
        shuffled=plan.shuffled_topics,
    )


def newest_of(checkpoint: str, progress: CheckpointProgress | None) -> BatchId:
    """Return the last micro-batch that a checkpoint has planned; number -1 for a new checkpoint."""
    return BatchId(checkpoint, -1) if progress is None else batch_id(progress.planned)


def checkpoint_id(start: StartFacts, progress: CheckpointProgress | None, marks: Mapping[int, Mark]) -> str:
    """Return the checkpoint id under which a start may deliver."""
    if progress is not None:
        planned = batch_id(progress.planned)
        _check_continues(start, planned, marks)
        return planned.checkpoint
    if marks and all(mark[:2] == (start.begun, -1) for mark in marks.values()):
        return start.begun
    others = list(marks.values())
    if others and not start.was_reset():
        if not start.take_over:
            raise _other_checkpoint_error(start, _newest(others))
        if _newest(others).number >= 0:
            _check_exact(start, others)
    return secrets.token_hex(8)


def _check_exact(start: StartFacts, others: list[Mark]) -> None:
    """Check that the application can continue at the committed offsets without loss and without duplicates."""
    if not start.goes_on():
        raise _lost(start, _newest(others))
    if start.shuffled and len(others) > 1:
        raise _shuffled_error(start, _newest(others))


def _check_continues(start: StartFacts, planned: BatchId, marks: Mapping[int, Mark]) -> None:
    others = [mark for mark in marks.values() if mark.checkpoint != planned.checkpoint]
    if others:
        raise _overtaken_error(start, planned, _newest(others))
    ahead = [mark for mark in marks.values() if ahead_of(mark, planned)]
    if ahead:
        newest = _newest(ahead).number
        which = (
            "a micro-batch of that number that it has not planned"
            if newest == planned.number
            else f"micro-batch {newest}"
        )
        raise OtherCheckpointError(
            f"the checkpoint of application {start.application_id!r} at {start.location} is not the newest one: it ends "
            f"with micro-batch {planned.number}, but {which} has been delivered from it or from a copy. It is an old "
            "copy, or its newest files are missing. Nothing was read or sent. Start the application where the newest one "
            f"is. If there is none, {_with_the_other_lost(start)}"
        )


def _other_checkpoint_error(start: StartFacts, other: Mark) -> OtherCheckpointError:
    return OtherCheckpointError(
        f"application {start.application_id!r} belongs to another checkpoint ({other.checkpoint}, {_delivery_phrase(other)}), and there "
        f"is none at {start.location}. Nothing was read or sent. Either it runs on another host or with another state_dir: then "
        f"stop it there, or start it there again. Or its checkpoint is lost: then {_with_the_other_lost(start)}"
    )


def _lost(start: StartFacts, other: Mark) -> OtherCheckpointError:
    return OtherCheckpointError(
        f"application {start.application_id!r} cannot be taken over from checkpoint {other.checkpoint} ({_delivery_phrase(other)}): only "
        "that checkpoint has the content of its stores, because not all of them have a changelog topic (changelog='kafka'). "
        f"Nothing was read or sent. Start it where that checkpoint is, or start over with `millstream reset {start.application_id}`, "
        "with empty stores"
    )


def _shuffled_error(start: StartFacts, other: Mark) -> OtherCheckpointError:
    return OtherCheckpointError(
        f"application {start.application_id!r} cannot be taken over from checkpoint {other.checkpoint} ({_delivery_phrase(other)}): the "
        f"records of the repartition {start.shuffled[0]!r} go through Spark's shuffle, so their offsets and their results are committed in "
        "different transactions. If its last micro-batch was interrupted between them, records would be lost or sent twice. Nothing was "
        f"read or sent. Start it where that checkpoint is, or choose the offsets with `millstream reset {start.application_id}`; records that "
        "are then processed again are sent again"
    )


def _overtaken_error(start: StartFacts, planned: BatchId, other: Mark) -> OtherCheckpointError:
    return OtherCheckpointError(
        f"application {start.application_id!r} has been taken over from the checkpoint at {start.location} "
        f"({planned.checkpoint}, micro-batch {planned.number}) by another one ({other.checkpoint}, {_delivery_phrase(other)}). "
        "Nothing was read or sent: the results that this checkpoint would send have already been sent. Start the "
        f"application where the other one is. If that is lost, delete this one and {_with_the_other_lost(start)}"
    )


def _with_the_other_lost(start: StartFacts) -> str:
    return (
        "set on_other_checkpoint='take_over', which continues at the committed offsets if all stores have changelog topics, or "
        f"start over with `millstream reset {start.application_id}`"
    )


def _delivery_phrase(other: Mark) -> str:
    return "nothing delivered yet" if other.number < 0 else f"delivered up to micro-batch {other.number}"


def _newest(marks: list[Mark]) -> Mark:
    return max(marks, key=lambda mark: mark.number)
