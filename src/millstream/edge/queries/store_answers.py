"""Answers questions about the application's stores, from the local copies of its tasks.

A task reports the version of the state that it commits. Queries open its local copy at that version, with the parked changes beside it,
while the task's processes continue to write the copy. Therefore an answer is never older than an earlier one, and never from an
uncommitted micro-batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.partitioning import partition_of, range_of
from millstream.core.model.positions import Offsets
from millstream.core.queries.argument_checks import check
from millstream.core.queries.question import Answer, Question, answer_of, key_of, scope_of
from millstream.core.queries.text_questions import parsed, plain
from millstream.core.runtime.intake import topics_in_front
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.plan import Plan, SubTopology
from millstream.core.topology.stores import StoreSpec
from millstream.edge.queries.global_answers import GlobalAnswers, check_is_kept, readers_of
from millstream.edge.queries.task_copies import Copies
from millstream.edge.status.task_reports import TaskReports

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.002
_WAKE_S: Final = 0.3
_WAKE_EVERY_S: Final = 2.0
"""A query that waits for a local copy wakes its tasks after ``_WAKE_S``, and then at this interval."""


@dataclass(frozen=True)
class _Committed:
    """What the tasks of a sub-topology have committed, at a revision of the reports."""

    revision: int
    batch: int
    reports: Mapping[TaskId, TaskReport]
    offsets: Offsets
    lag: int


class Answers:
    """Answers questions about the stores of a running application; thread-safe."""

    def __init__(
        self,
        application_id: str,
        copies: Copies,
        reports: TaskReports,
        plan: Callable[[], Plan],
    ) -> None:
        self._id = application_id
        self._copies = copies
        self._reports = reports
        self._plan = plan
        self._of_globals = GlobalAnswers(copies)
        self._seen: dict[int, _Committed] = {}
        self._waited_for: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False

    def stores(self) -> Mapping[str, str]:
        return {name: spec.kind for part in self._parts() for name, spec in sorted(part.stores.items())}

    def answer(self, question: Question) -> Answer:
        """Answer a question.

        Raises:
            QueryError: If the store has no such method, or an argument does not fit.
            StoreError: If the application has ended, there is no such store, the lag is too large, or the local copy cannot be read
                because it is being restored or its host cannot be reached.
        """
        self._refuse_if_closed()
        sub = self._part_of(question.store)
        spec = sub.stores[question.store]
        if question.text:
            answer = self.answer(replace(parsed(question, spec), text=False))
            return replace(answer, value=plain(answer.value))
        check(question, spec)
        began = time.monotonic()
        wake_at = began + _WAKE_S
        while True:
            try:
                answer = self._answered(question, sub)
                if question.method == "info":
                    answer.value["engine"] = self._copies.engine_of(question.store)
                return answer
            except CopyMovedError as error:
                self._refuse_if_closed()
                now = time.monotonic()
                if now > wake_at:
                    wake_at = now + _WAKE_EVERY_S
                    with self._lock:
                        self._waited_for |= readers_of(question.store, self._plan()) or {sub.id}
                if now > began + _WAIT_S:
                    raise StoreError(
                        f"store {question.store!r} could not be read for {_WAIT_S:.0f} s, because it is being restored or its host is lost: {error}"
                    ) from None
            time.sleep(_POLL_S)

    def committed(self) -> None:
        """Release the views of the previous micro-batch. Called after each commit."""
        self._copies.committed()

    def take_woken(self) -> frozenset[str]:
        """Return, and forget, the tasks that must run because a query waits for their local copies.

        The micro-batch shows on which host a task now runs, and brings the local copy on that host up to date. A copy in memory is
        then written to a file.
        """
        with self._lock:
            subtopologies = frozenset(self._waited_for)
            self._waited_for.clear()
        return frozenset(
            task for task in self._reports.of_tasks() if TaskId.parse(task).subtopology in subtopologies
        )

    def close(self) -> None:
        """Refuse further questions, and close the local copies, so that the next run in this process can open them."""
        self._closed = True
        self._copies.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError(
                f"application {self._id!r} has ended; ms.read_store(checkpoint, name) reads the stores of a stopped application"
            )

    def _part_of(self, store: str) -> SubTopology:
        parts = self._parts()
        sub = next((part for part in parts if store in part.stores), None)
        if sub is None:
            names = ", ".join(repr(name) for part in parts for name in sorted(part.stores)) or "none"
            raise StoreError(f"application {self._id!r} has no store {store!r}; its stores are: {names}")
        return sub

    def _parts(self) -> tuple[SubTopology, ...]:
        """Return the parts of the plan that may have stores: the sub-topologies, and the parts that fill global stores."""
        plan = self._plan()
        return (*plan.subtopologies, *plan.global_parts)

    def _answered(self, question: Question, sub: SubTopology) -> Answer:
        if any(part.id == sub.id for part in self._plan().global_parts):
            check_is_kept(question.store, self._plan())
            return self._of_globals.answer(question, sub, self._reports.batch, self._reports.of_tasks())
        now = self._committed(sub)
        if not now.reports:
            raise StoreError(f"the tasks of store {question.store!r} have not started yet; try again")
        if question.max_lag is not None and now.lag > question.max_lag:
            raise StoreError(
                f"store {question.store!r} is {now.lag:,} records behind its topics, and at most {question.max_lag:,} were allowed"
            )
        spec = sub.stores[question.store]
        if scope_of(question, spec) == "key":
            value = self._of_key(question, spec, sub, now.reports)
        else:
            value = self._of_all(question, spec, now.reports)
        return Answer(value, now.batch, now.offsets, now.lag)

    def _committed(self, sub: SubTopology) -> _Committed:
        revision = self._reports.revision
        known = self._seen.get(sub.id)
        if known is None or known.revision != revision:
            topics = {*sub.source_topics, *topics_in_front(self._plan()).get(sub.id, ())}
            known = self._seen[sub.id] = _Committed(revision, *self._reports.committed_of(sub.id, topics))
        return known

    def _of_key(
        self, question: Question, spec: StoreSpec, sub: SubTopology, reports: Mapping[TaskId, TaskReport]
    ) -> Any:
        """Ask the key's task by the default partitioner, then all other tasks, until one has a value."""
        first = TaskId(sub.id, _task_of(key_of(question, spec), sub, len(reports)))
        own = [reports[first]] if first in reports else []
        value = None
        for report in chain(own, (report for task, report in reports.items() if task != first)):
            copy = self._copies.of_task(spec.name, report)
            with copy.lock:
                value = answer_of(question, spec, [copy.store(spec, report)])
            if value is not None and value != []:
                break
        return value

    def _of_all(self, question: Question, spec: StoreSpec, reports: Mapping[TaskId, TaskReport]) -> Any:
        copies = [(self._copies.of_task(spec.name, report), report) for report in reports.values()]
        with ExitStack() as locks:
            # All questions lock in the order of the tasks, which prevents deadlocks.
            for copy, _ in copies:
                locks.enter_context(copy.lock)
            return answer_of(question, spec, [copy.store(spec, report) for copy, report in copies])


def _task_of(key: bytes, sub: SubTopology, tasks: int) -> int:
    """Return the number of a key's task by the default partitioner."""
    partition = partition_of(key, max(tasks // sub.ranges, 1))
    return partition if sub.ranges == 1 else partition * sub.ranges + range_of(key, sub.ranges)
