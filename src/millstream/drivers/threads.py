"""Threads that run the functions of a task (KIP-408).

A process reuses its threads: on Spark, every micro-batch creates the task again, and a function may keep a connection in each thread
that calls it. The threads are daemons, so a call that never returns does not keep a terminating process alive.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from millstream.core.model.ids import TaskId
from millstream.core.ports import Work


class TaskThreads:
    """A number of threads for one task. Implements ``Threads``. Owned by the task.

    Example:
        >>> done = []
        >>> work = iter([True, True, False])
        >>> TaskThreads(2).run([lambda: done.append(1) or next(work)])
        (None,)
        >>> done
        [1, 1, 1]
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def run(self, work: Sequence[Work]) -> tuple[BaseException | None, ...]:
        jobs = [_Job(each) for each in work]
        for job in jobs:
            _idle_thread().give(job)
        try:
            for job in jobs:
                job.ended.wait()
        except BaseException:
            for job in jobs:
                job.given_up = True
            raise
        return tuple(job.error for job in jobs)


@dataclass(frozen=True)
class ThreadsOfTasks:
    """Returns the threads of each task, by its count. Pickled with cloudpickle."""

    counts: Mapping[TaskId, int]

    def __call__(self, task: TaskId) -> TaskThreads | None:
        count = self.counts.get(task, 1)
        return TaskThreads(count) if count > 1 else None


class _Job:
    def __init__(self, work: Work) -> None:
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.given_up = False
        self._work = work

    def run(self) -> bool:
        """Run the job to its end. Return whether the thread can run further jobs."""
        try:
            while not self.given_up and self._work():
                pass
        except BaseException as error:
            self.error = error
        return self.error is None


class _Thread(threading.Thread):
    """A thread that runs jobs in sequence, until an error in a job ends it."""

    def __init__(self) -> None:
        super().__init__(name="millstream-task-thread", daemon=True)
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self.start()

    def give(self, job: _Job) -> None:
        self._jobs.put(job)

    def run(self) -> None:
        lives = True
        while lives:
            job = self._jobs.get()
            lives = job.run()
            if lives:
                _IDLE.append(self)
            job.ended.set()


_IDLE: list[_Thread] = []
"""Idle threads of this process. Operations on the list are atomic."""
os.register_at_fork(after_in_child=_IDLE.clear)  # a child has none of its parent's threads


def _idle_thread() -> _Thread:
    """Return the most recently used idle thread, to keep the number of threads small, or a new thread if all are busy."""
    try:
        return _IDLE.pop()
    except IndexError:
        return _Thread()
