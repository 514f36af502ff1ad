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
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.partitioning import partition_of, range_of
from millstream.core.queries.question import Answer, Question, answer_of, key_of, scope_of
from millstream.core.queries.text import parsed, plain
from millstream.core.runtime.intake import topics_in_front
from millstream.core.state.opening import open_store
from millstream.core.topology.plan import Plan, SubTopology
from millstream.drivers.lmdb.queries import LmdbQueries
from millstream.drivers.spark.worker.copies import CopiesSpec
from millstream.drivers.spark.worker.report import Report, StateReport
from millstream.edge.status import Book

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.002
_ENGINE: Final = "lmdb"


@dataclass(frozen=True)
class _Surroundings:
    """The view of a task for a store that is only read."""

    stream_time: int

    def drop(self, reason: str) -> None:
        """Do nothing."""


class Answers:
    """Answers questions about the stores of a running application. Safe to use from several threads.

    Args:
        application_id: The application.
        copies: Where the local copies are.
        book: What the tasks have reported.
        plan: Gives the plan that runs.
    """

    def __init__(self, application_id: str, copies: CopiesSpec, book: Book, plan: Callable[[], Plan]) -> None:
        self._id = application_id
        self._copies = copies
        self._book = book
        self._plan = plan
        self._open: dict[TaskId, LmdbQueries] = {}
        self._lock = threading.Lock()
        self._host = socket.gethostname()

    def stores(self) -> Mapping[str, str]:
        """Return the stores that can be asked, with their kinds."""
        return {
            name: spec.kind
            for sub in self._plan().subtopologies
            for name, spec in sorted(sub.stores.items())
            if self._copies.engines[name] == _ENGINE
        }

    def answer(self, question: Question) -> Answer:
        """Answer a question.

        Raises:
            StoreError: If there is no such store or method, the key does not fit, the application is too far behind, or the copy cannot
                be read: it is kept by another engine, lies on another host, or is being restored.
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

    def close(self) -> None:
        """Close the copies."""
        with self._lock:
            for copy in self._open.values():
                copy.close()
            self._open.clear()

    def _keeper_of(self, store: str) -> SubTopology:
        subs = self._plan().subtopologies
        sub = next((sub for sub in subs if store in sub.stores), None)
        if sub is None:
            there = ", ".join(repr(name) for sub in subs for name in sorted(sub.stores)) or "none"
            raise StoreError(f"application {self._id!r} has no store {store!r}; its stores are: {there}")
        if self._copies.engines[store] != _ENGINE:
            raise StoreError(
                f"store {store!r} is kept by the engine {self._copies.engines[store]!r}, which only its tasks can read; stop the "
                "application and use millstream.read_store, or keep the store in lmdb"
            )
        return sub

    def _answered(self, question: Question, sub: SubTopology) -> Answer:
        topics = {*sub.source_topics, *topics_in_front(self._plan()).get(sub.id, ())}
        batch, reports, offsets, lag = self._book.committed_of(sub.id, topics)
        if not reports:
            raise StoreError(f"the tasks of store {question.store!r} have not started yet; ask again")
        if question.max_lag is not None and lag > question.max_lag:
            raise StoreError(
                f"store {question.store!r} is {lag:,} records behind its topics, and at most {question.max_lag:,} were allowed"
            )
        spec = sub.stores[question.store]
        tasks = list(reports)
        if scope_of(question, spec) == "key":
            tasks.sort(key=lambda task: task.partition != _task_of(key_of(question, spec), sub, len(tasks)))
        with ExitStack() as views:
            stores = self._opened(question.store, sub, {task: reports[task] for task in tasks}, views)
            value = answer_of(question, spec, stores)
        return Answer(value, batch, offsets, lag)

    def _opened(
        self, store: str, sub: SubTopology, reports: Mapping[TaskId, Report], views: ExitStack
    ) -> Iterator[Any]:
        """Open the store of one task after the other."""
        for task, report in reports.items():
            host = report.executor.partition("/")[0]
            if host and host != self._host:
                raise StoreError(
                    f"store {store!r} of task {task} is on host {host!r}; questions are answered from the copies of host "
                    f"{self._host!r} only"
                )
            state = report.state or StateReport(0, (), {})
            stores = views.enter_context(self._copy(task).view(state.known))
            surroundings = _Surroundings(report.stream_time_ms)
            yield open_store(sub.stores[store], stores, surroundings, state.memory.get(store, {}))

    def _copy(self, task: TaskId) -> LmdbQueries:
        with self._lock:
            if task not in self._open:
                self._open[task] = LmdbQueries(f"{self._copies.directory}/{task}/{_ENGINE}")
            return self._open[task]


def _task_of(key: bytes, sub: SubTopology, tasks: int) -> int:
    """Return the number of the task that has a key if the default partitioner wrote it."""
    partitions = max(tasks // sub.ranges, 1)
    return partition_of(key, partitions) * sub.ranges + range_of(key, sub.ranges)
