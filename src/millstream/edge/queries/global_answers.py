"""Answers about global stores, from the local copy on one host.

Every host with tasks that may read a global store has a copy of it. Before the tasks of a micro-batch run, the copy is filled up to the
offsets of that micro-batch, so it may be ahead of the committed offsets. Questions go to the host whose tasks have reported the highest
offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.queries.question import Answer, Question, answer_of
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.plan import Plan, SubTopology
from millstream.edge.queries.task_copies import Copies

Positions = Mapping[int, int]


class Furthest(NamedTuple):
    """The report with the highest offsets of a global store's topic, and these offsets. None if no task has reported any."""

    report: TaskReport | None
    offsets: Positions


class GlobalAnswers:
    """Answers questions about global stores. Thread-safe.

    An answer is never older than an earlier one, even if a copy is filled again or a host is lost, unless the topic was created again.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._seen: dict[str, tuple[str, Positions]] = {}
        """By store, the identity of the copied content, and the positions of the last answer."""

    def answer(self, question: Question, part: SubTopology, batch: int, furthest: Furthest) -> Answer:
        """Answer a question.

        Raises:
            CopyMovedError: If the copy is being filled, or its host cannot currently be reached.
            StoreError: If no task that may read the store has run, or the copy cannot answer.
        """
        spec, topic = part.stores[question.store], part.source_topics[0]
        report, reached = furthest
        if report is None:
            raise StoreError(
                f"no task that may read the global store {question.store!r} has run yet, so no host has a copy; ask again"
            )
        copy = self._copies.of_global(question.store, report)
        with copy:
            opened = copy.global_store(spec, batch)
            identity, seen = self._seen.get(question.store, ("", {}))
            if opened.identity != identity:
                seen = {}
            if _is_behind(opened.positions, reached) or _is_behind(opened.positions, seen):
                copy.forget_global()
                raise CopyMovedError(f"the copy of global store {question.store!r} is being filled")
            self._seen[question.store] = opened.identity, opened.positions
            value = answer_of(question, spec, [opened.store])
        return Answer(value, batch, {topic: opened.positions})


def readers_of(store: str, plan: Plan) -> frozenset[int]:
    return frozenset(sub.id for sub in plan.subtopologies if store in sub.global_stores)


def check_is_kept(store: str, plan: Plan) -> None:
    """Check that hosts have copies of a global store.

    Raises:
        StoreError: If no task can read it, because the topology has no state.
    """
    if not readers_of(store, plan):
        topic = next(topic for topic, part in plan.global_part_of.items() if store in part.stores)
        raise StoreError(
            f"no host has a copy of the global store {store!r}, because nothing reads it and the topology has no other state; join a "
            f"stream with it, or read its topic {topic!r}"
        )


def furthest_of(part: SubTopology, reports: Mapping[str, TaskReport]) -> Furthest:
    """Return how far the copies of a global store are filled, from the last reports of all tasks."""
    furthest = Furthest(None, {})
    for _, report in sorted(reports.items(), key=lambda item: TaskId.parse(item[0])):
        filled = report.global_offsets.items()
        offsets = {p.partition: offset for p, offset in filled if p.topic == part.source_topics[0]}
        if offsets and (furthest.report is None or sum(offsets.values()) > sum(furthest.offsets.values())):
            furthest = Furthest(report, offsets)
    return furthest


def _is_behind(positions: Positions, offsets: Positions) -> bool:
    return any(positions.get(partition, 0) < offset for partition, offset in offsets.items())
