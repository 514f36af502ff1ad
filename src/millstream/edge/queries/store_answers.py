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
from typing import Any, Final, NamedTuple

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.partitioning import partition_of, range_of
from millstream.core.model.positions import Offsets
from millstream.core.queries.argument_checks import checked, key_of
from millstream.core.queries.question import Answer, Question, answer_of, found_in
from millstream.core.queries.text_questions import as_json_value, parsed
from millstream.core.runtime.origins import topics_in_front
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.plan import Plan, SubTopology
from millstream.core.topology.stores import StoreSpec
from millstream.edge.queries.global_answers import (
    Furthest,
    GlobalAnswers,
    check_is_kept,
    furthest_of,
    readers_of,
)
from millstream.edge.queries.task_copies import Copies, TaskCopy
from millstream.edge.status.task_reports import TaskReports

_WAIT_S: Final = 10.0
_LAG_KNOWN_S: Final = 10.0
"""For how long the last known lag counts while no broker answers."""
_POLL_S: Final = 0.002
_WAKE_S: Final = 0.3
_WAKE_EVERY_S: Final = 2.0
"""A query that waits for a local copy wakes its tasks after ``_WAKE_S``, and then at this interval."""


class _Copied(NamedTuple):
    """What a task has committed: its report, and the local copy with that state."""

    copy: TaskCopy
    report: TaskReport


@dataclass(frozen=True)
class _Readable:
    """A store of a plan, with what its tasks have committed, at a revision of the reports.

    Attributes:
        copies: By number of the task, in order; empty for a global store.
        partitions: Number of partitions that the tasks divide, at least 1.
        complete: Whether all tasks of the plan have reported.
        furthest: Of a global store: how far its copies are filled. None for a store of tasks.
    """

    plan: Plan
    revision: int
    part: SubTopology
    spec: StoreSpec
    copies: Mapping[int, _Copied]
    partitions: int
    complete: bool
    batch: int
    offsets: Offsets
    lag: int
    furthest: Furthest | None


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
        self._seen: dict[str, _Readable] = {}
        self._waited_for: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False

    def stores(self) -> Mapping[str, str]:
        return {
            name: spec.kind
            for part in _parts_with_stores(self._plan())
            for name, spec in sorted(part.stores.items())
        }

    def answer(self, question: Question) -> Answer:
        """Answer a question.

        Raises:
            QueryError: If the store has no such method, or an argument does not fit.
            StoreError: If the application has ended, there is no such store, the lag is too large or not known, or the local copy cannot be
                read because it is being restored, its host cannot be reached or not all of its tasks have run.
        """
        if self._closed:
            raise self._ended_error()
        if question.text:
            spec = self._readable(question.store).spec
            answer = self.answer(replace(parsed(question, spec), text=False))
            return replace(answer, value=as_json_value(answer.value))
        began = time.monotonic()
        wake_at = began + _WAKE_S
        while True:
            try:
                answer = self._answer_from_copies(question)
                if question.method == "info":
                    answer.value["engine"] = self._copies.engine_of(question.store)
                return answer
            except CopyMovedError as error:
                if self._closed:
                    raise self._ended_error() from None
                now = time.monotonic()
                if now > wake_at:
                    wake_at = now + _WAKE_EVERY_S
                    waited_for = self._subtopologies_with(question.store)
                    with self._lock:
                        self._waited_for |= waited_for
                if now > began + _WAIT_S:
                    raise StoreError(
                        f"store {question.store!r} could not be read for {_WAIT_S:.0f} s, because it is being restored or "
                        f"its host was lost: {error}"
                    ) from None
            time.sleep(_POLL_S)

    def release_views(self) -> None:
        """Release the views of the previous micro-batch. Called after each commit, which does not wait for running questions."""
        self._copies.release_views()

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
        """Refuse further questions, and close the local copies, so that the next run in this process can open them.

        Waits for questions that are being answered; one that waits for another host gives up.
        """
        self._closed = True
        self._copies.close()

    def _ended_error(self) -> StoreError:
        return StoreError(
            f"application {self._id!r} has ended; ms.read_store(checkpoint, name) reads the stores of a stopped application"
        )

    def _subtopologies_with(self, store: str) -> frozenset[int]:
        return readers_of(store, self._plan()) or frozenset([self._readable(store).part.id])

    def _readable(self, store: str) -> _Readable:
        """Return a store with the newest commit of its tasks. Looked up once per revision of the reports, not for each question."""
        plan, revision = self._plan(), self._reports.revision
        known = self._seen.get(store)
        if known is None or known.revision != revision or known.plan is not plan:
            known = self._seen[store] = self._committed_store(store, plan, revision)
        return known

    def _committed_store(self, store: str, plan: Plan, revision: int) -> _Readable:
        part = self._part_of(store, plan)
        topics = {*part.source_topics, *topics_in_front(plan).get(part.id, ())}
        batch, reports, offsets, lag = self._reports.committed_of(part.id, topics)
        copies = {
            task.partition: _Copied(self._copies.of_task(store, report), report)
            for task, report in reports.items()
        }
        furthest = None
        if any(part.id == other.id for other in plan.global_parts):
            check_is_kept(store, plan)
            furthest = furthest_of(part, self._reports.of_tasks())
        complete = self._reports.are_complete(plan)
        spec = part.stores[store]
        partitions = max(len(copies) // part.ranges, 1)
        return _Readable(
            plan, revision, part, spec, copies, partitions, complete, batch, offsets, lag, furthest
        )

    def _part_of(self, store: str, plan: Plan) -> SubTopology:
        parts = _parts_with_stores(plan)
        part = next((part for part in parts if store in part.stores), None)
        if part is None:
            names = ", ".join(repr(name) for part in parts for name in sorted(part.stores)) or "none"
            raise StoreError(f"application {self._id!r} has no store {store!r}; its stores are: {names}")
        return part

    def _answer_from_copies(self, question: Question) -> Answer:
        store = self._readable(question.store)
        scope = checked(question, store.spec).scope
        if store.furthest is not None:
            if scope == "key":
                key_of(question, store.spec)  # refuses a key that does not fit
            return self._of_globals.answer(question, store.part, store.batch, store.furthest)
        if not store.copies or not store.complete:
            raise CopyMovedError("not all of its tasks have run since the start or the last edit")
        if question.max_lag is not None:
            self._check_lag(question.store, store.lag, question.max_lag)
        value = _of_key(question, store) if scope == "key" else _of_all(question, store)
        return Answer(value, store.batch, store.offsets, store.lag)

    def _check_lag(self, store: str, lag: int, most: int) -> None:
        unknown_s = self._reports.lag_unknown_s()
        if unknown_s > _LAG_KNOWN_S:
            raise StoreError(
                f"the lag of store {store!r} has not been known for {unknown_s:.0f} s, because no broker answers, and at most {most:,} "
                "records were allowed (max_lag); query it again later, or without max_lag"
            )
        if lag > most:
            raise StoreError(
                f"store {store!r} is {lag:,} records behind its topics, and at most {most:,} were allowed (max_lag); query it again "
                "later, or allow more"
            )


def _parts_with_stores(plan: Plan) -> tuple[SubTopology, ...]:
    """Return the parts of the plan that may have stores: the sub-topologies, and the parts that fill global stores."""
    return (*plan.subtopologies, *plan.global_parts)


def _of_key(question: Question, store: _Readable) -> Any:
    """Ask the key's task by the default partitioner, then all other tasks, until one has a value."""
    spec, first = store.spec, _task_of(key_of(question, store.spec), store)
    value = _query_copy(question, spec, store.copies[first]) if first in store.copies else None
    if _is_nothing(value):
        for task, copied in store.copies.items():
            if task != first:
                found = _query_copy(question, spec, copied)
                if not _is_nothing(found):
                    return found
                value = found if value is None else value  # an empty list may be the value of the key
    return value


def _is_nothing(value: Any) -> bool:
    """Return whether an answer is that of a task without the key. Comparing a value of the user may fail, such as that of an array."""
    return value is None or (type(value) is list and not value)


def _query_copy(question: Question, spec: StoreSpec, copied: _Copied) -> Any:
    copy, report = copied
    with copy:
        return found_in(copy.store(spec, report), question)


def _of_all(question: Question, store: _Readable) -> Any:
    with ExitStack() as locks:
        # All questions lock in the order of the tasks, which prevents deadlocks.
        for copy, _ in store.copies.values():
            locks.enter_context(copy)
        stores = [copy.store(store.spec, report) for copy, report in store.copies.values()]
        return answer_of(question, store.spec, stores)


def _task_of(key: bytes, store: _Readable) -> int:
    """Return the number of a key's task by the default partitioner."""
    ranges = store.part.ranges
    partition = partition_of(key, store.partitions)
    return partition if ranges == 1 else partition * ranges + range_of(key, ranges)
