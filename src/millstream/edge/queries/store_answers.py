"""Answers: what the application answers to questions about its stores, from the local copies of this host.

A task reports the version of the state that it commits. Its copy is opened at that version, with the changes that are parked beside
it, while the processes of the task go on writing it. So an answer is never older than one before, and never from a micro-batch that is
not committed.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.partitioning import partition_of, range_of
from millstream.core.model.positions import Offsets
from millstream.core.ports import ByteStores
from millstream.core.queries.question import Answer, Question, answer_of, key_of, scope_of
from millstream.core.queries.text_questions import parsed, plain
from millstream.core.runtime.intake import topics_in_front
from millstream.core.runtime.task_report import StateReport, TaskReport
from millstream.core.state.opening import open_store
from millstream.core.topology.plan import Plan, SubTopology
from millstream.core.topology.stores import StoreSpec
from millstream.drivers.lmdb.queries import LmdbQueries
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.edge.status.task_reports import TaskReports

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.002
_ENGINE: Final = "lmdb"


@dataclass(frozen=True)
class _Surroundings:
    """The view of a task for a store that is only read."""

    stream_time: int

    def drop(self, reason: str) -> None:
        """Do nothing."""


class _TaskCopy:
    """A task's copy, with the stores that are open on its newest view. Hold its lock while using them."""

    def __init__(self, directory: str) -> None:
        self.lock = threading.Lock()
        self._copy = LmdbQueries(directory)
        self._stores: tuple[ByteStores | None, dict[str, Any]] = (None, {})

    def store(self, spec: StoreSpec, report: TaskReport) -> Any:
        """Return a store at the state in a report."""
        state = report.state or StateReport(0, (), {})
        view = self._copy.view(state.known)
        if self._stores[0] is not view:
            self._stores = view, {}
        opened = self._stores[1]
        if spec.name not in opened:
            surroundings = _Surroundings(report.stream_time_ms)
            opened[spec.name] = open_store(spec, view, surroundings, state.memory.get(spec.name, {}))
        return opened[spec.name]

    def release(self) -> None:
        with self.lock:
            self._stores = (None, {})
            self._copy.release()

    def close(self) -> None:
        self.release()
        with self.lock:
            self._copy.close()


@dataclass(frozen=True)
class _Committed:
    """What the tasks of a sub-topology have committed, as of a revision of the reports."""

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
        copies: Callable[[], CopiesSpec],
        reports: TaskReports,
        plan: Callable[[], Plan],
    ) -> None:
        self._id = application_id
        self._copies_spec = copies
        self._reports = reports
        self._plan = plan
        self._copies: dict[TaskId, _TaskCopy] = {}
        self._seen: dict[int, _Committed] = {}
        self._lock = threading.Lock()
        self._host = socket.gethostname()

    def stores(self) -> Mapping[str, str]:
        return {
            name: spec.kind
            for sub in self._plan().subtopologies
            for name, spec in sorted(sub.stores.items())
            if self._copies_spec().engines[name] == _ENGINE
        }

    def answer(self, question: Question) -> Answer:
        """Answer a question.

        Raises:
            StoreError: If there is no such store or method, the key does not fit, the lag is too large, or the copy cannot be
                read: it belongs to another engine or host, or is being restored.
        """
        sub = self._keeper_of(question.store)
        scope_of(question, sub.stores[question.store])
        if question.text:
            answer = self.answer(replace(parsed(question, sub.stores[question.store]), text=False))
            return replace(answer, value=plain(answer.value))
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                return self._answered(question, sub)
            except CopyMovedError as error:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"store {question.store!r} could not be read for {_WAIT_S:.0f} s, because it is being restored: {error}"
                    ) from None
            time.sleep(_POLL_S)

    def committed(self) -> None:
        """Release the views of the previous micro-batch; called after each commit."""
        with self._lock:
            copies = list(self._copies.values())
        for copy in copies:
            copy.release()

    def close(self) -> None:
        with self._lock:
            copies = list(self._copies.values())
            self._copies.clear()
        for copy in copies:
            copy.close()

    def _keeper_of(self, store: str) -> SubTopology:
        subs = self._plan().subtopologies
        sub = next((sub for sub in subs if store in sub.stores), None)
        if sub is None:
            names = ", ".join(repr(name) for sub in subs for name in sorted(sub.stores)) or "none"
            raise StoreError(f"application {self._id!r} has no store {store!r}; its stores are: {names}")
        if self._copies_spec().engines[store] != _ENGINE:
            raise StoreError(
                f"store {store!r} is kept by the engine {self._copies_spec().engines[store]!r}, which only its tasks can read; stop the "
                "application and use millstream.read_store, or keep the store in lmdb"
            )
        return sub

    def _answered(self, question: Question, sub: SubTopology) -> Answer:
        now = self._committed(sub)
        if not now.reports:
            raise StoreError(f"the tasks of store {question.store!r} have not started yet; ask again")
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
        """Ask the task of the key by the default partitioner, then the others, until one has it."""
        first = TaskId(sub.id, _task_of(key_of(question, spec), sub, len(reports)))
        value = None
        for task in (first, *(task for task in reports if task != first)):
            if task not in reports:
                continue
            with self._locked(task, spec, reports[task]) as copy:
                value = answer_of(question, spec, [copy.store(spec, reports[task])])
            if value is not None and value != []:
                break
        return value

    def _of_all(self, question: Question, spec: StoreSpec, reports: Mapping[TaskId, TaskReport]) -> Any:
        with (
            ExitStack() as locks
        ):  # in the order of the tasks, so that two questions do not wait for each other
            copies = [
                (locks.enter_context(self._locked(task, spec, reports[task])), reports[task])
                for task in reports
            ]
            return answer_of(question, spec, [copy.store(spec, report) for copy, report in copies])

    @contextmanager
    def _locked(self, task: TaskId, spec: StoreSpec, report: TaskReport) -> Iterator[_TaskCopy]:
        host = report.executor.partition("/")[0]
        if host and host != self._host:
            raise StoreError(
                f"store {spec.name!r} of task {task} is on host {host!r}; questions are answered from the copies of host "
                f"{self._host!r} only"
            )
        with self._lock:
            if task not in self._copies:
                self._copies[task] = _TaskCopy(f"{self._copies_spec().directory}/{task}/{_ENGINE}")
            copy = self._copies[task]
        with copy.lock:
            yield copy


def _task_of(key: bytes, sub: SubTopology, tasks: int) -> int:
    """Return the number of the task of a key, by the default partitioner."""
    partition = partition_of(key, max(tasks // sub.ranges, 1))
    return partition if sub.ranges == 1 else partition * sub.ranges + range_of(key, sub.ranges)
