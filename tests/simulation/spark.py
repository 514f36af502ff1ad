"""A model of Spark: checkpoint, state store, and attempts of tasks on hosts that may die.

It behaves like Spark in the ways that product code has to cope with:

* Offsets are written before a micro-batch runs, its commit afterwards; a driver that finds offsets without a commit runs the
  micro-batch again.
* The state of a partition at version n is the result of the deltas of versions 1 to n. An attempt writes its delta when its rows
  are used up, before it is known whether it counts; the last attempt overwrites the delta (RocksDB with changelog checkpointing,
  checkpoint format 1). An executor keeps the state that it has loaded.
* An attempt that fails is repeated; attempts of one partition may run side by side; and an abandoned attempt continues.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from millstream.drivers.memory.memory_copy import MemoryCopy
from simulation.copies import DiskCopy, Files
from simulation.scheduler import Actor, Process, Scheduler

Key = tuple[Any, ...]
Content = dict[Key, Any]
_WORKERS = 3


class ChunkRow(NamedTuple):
    """A chunk row as Spark hands it to the task host."""

    group: int
    kind: int
    task: str
    topic: str
    partition: int
    lane: str
    start: int
    end: int
    batch: str
    now_ms: int
    ahead_ms: int
    payload: bytes


@dataclass
class Checkpoint:
    """The content of the checkpoint directory.

    Attributes:
        offsets: The planned offsets of each micro-batch.
        commits: The committed micro-batches.
        deltas: The changes in each version of a partition's state; None deletes.
    """

    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    deltas: dict[tuple[int, int], Content] = field(default_factory=dict)

    def state(self, partition: int, version: int) -> Content:
        """Return the state of a partition as an executor with nothing in memory loads it."""
        content: Content = {}
        for number in range(1, version + 1):
            for key, value in self.deltas[partition, number].items():
                if value is None:
                    content.pop(key, None)
                else:
                    content[key] = value
        return content


@dataclass(eq=False)
class Executor:
    """One executor: it keeps the state that it has loaded, and lets one attempt at a time use the state of a partition.

    Attributes:
        loaded: Version and content, by partition.
        busy: Partitions that an attempt works on.
    """

    loaded: dict[int, tuple[int, Content]] = field(default_factory=dict)
    busy: dict[int, Process] = field(default_factory=dict)


@dataclass(eq=False)
class Worker:
    """A Python worker: a process that attempts take turns in.

    Attributes:
        process: The process of the worker.
        memory: Its copies in memory, by directory.
        busy: Whether an attempt runs in it.
    """

    process: Process
    memory: dict[str, MemoryCopy] = field(default_factory=dict)
    busy: bool = False


class Host:
    """A machine: a disk, an executor and its workers."""

    def __init__(self, name: str, directory: str, scheduler: Scheduler) -> None:
        self.name = name
        self.directory = directory
        self.files: dict[str, Files] = {}
        self.executor = Executor()
        self._scheduler = scheduler
        self._workers: list[Worker] = []
        self._started = 0

    def worker(self) -> Worker:
        """Return a free worker."""
        self._workers = [worker for worker in self._workers if worker.process.alive]
        free = [worker for worker in self._workers if not worker.busy]
        if len(free) < _WORKERS:
            self._started += 1
            free.append(Worker(Process(f"{self.name}.{self._started}")))
            self._workers.append(free[-1])
        worker = self._scheduler.random.choice(free)
        worker.busy = True
        return worker

    def restart_executor(self) -> None:
        """Start an executor with nothing in memory for new attempts; the old workers keep the old one."""
        self.executor = Executor()
        self._workers = []

    def lose_disk(self) -> None:
        """Delete all copies and the parked changes beside them."""
        self.files.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def processes(self) -> list[Process]:
        """Return the processes of the workers that are alive."""
        return [worker.process for worker in self._workers if worker.process.alive]

    def copy(self, engine: Literal["disk", "memory"], directory: str, worker: Worker) -> Any:
        """Open the local copy in a directory."""
        path = f"{self.directory}/{directory}"
        if engine == "disk":
            return DiskCopy(path, self.files, self._scheduler)
        if path not in worker.memory:
            worker.memory[path] = MemoryCopy(path)
        worker.memory[path].directory.prepare()
        return worker.memory[path]


class StateStore:
    """The state of one partition in one attempt."""

    def __init__(self, checkpoint: Checkpoint, executor: Executor, partition: int, version: int) -> None:
        self._checkpoint = checkpoint
        self._executor = executor
        self._partition = partition
        self._version = version
        loaded = executor.loaded.get(partition)
        self._base = loaded[1] if loaded and loaded[0] == version else checkpoint.state(partition, version)
        self.delta: Content = {}

    def get(self, key: Key) -> Any:
        return self.delta[key] if key in self.delta else self._base.get(key)

    def put(self, key: Key, value: Any) -> None:
        self.delta[key] = value

    def commit(self) -> None:
        """Write the delta; it counts if the micro-batch is committed."""
        version = self._version + 1
        self._checkpoint.deltas[self._partition, version] = self.delta
        content = {key: value for key, value in (self._base | self.delta).items() if value is not None}
        self._executor.loaded[self._partition] = (version, content)


class Handle:
    """The handle with which the task host declares its state, and also the states themselves: one value and one map."""

    def __init__(self, store: StateStore, group: int, scheduler: Scheduler) -> None:
        self._store = store
        self._group = group
        self._scheduler = scheduler

    def getValueState(self, name: str, schema: Any) -> Handle:  # noqa: N802 - Spark's name
        return self

    def getMapState(self, name: str, key: Any, value: Any) -> Handle:  # noqa: N802 - Spark's name
        return self

    def get(self) -> Any:
        self._scheduler.sometimes("reads its manifest", 0.3)
        return self._store.get((self._group,))

    def update(self, value: Any) -> None:
        self._scheduler.sometimes("writes its manifest", 0.3)
        self._store.put((self._group,), value)

    def clear(self) -> None:
        self._store.put((self._group,), None)

    def getValue(self, key: Any) -> Any:  # noqa: N802 - Spark's name
        return self._store.get((self._group, *key))

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802 - Spark's name
        self._scheduler.sometimes("writes a segment", 0.1)
        self._store.put((self._group, *key), value)

    def removeKey(self, key: Any) -> None:  # noqa: N802 - Spark's name
        self._store.put((self._group, *key), None)


@dataclass(eq=False)
class Attempt:
    """One attempt of a task.

    Attributes:
        actor: The actor that runs it.
        number: How many attempts of the task were begun before it, as Spark's ``attemptNumber``.
        result: The result; None if the attempt is not done.
    """

    actor: Actor
    number: int = 0
    result: Any = None

    @property
    def state(self) -> Literal["running", "failed", "done"]:
        """Whether it runs, has failed or is done; an attempt whose worker died has failed."""
        if self.result is not None:
            return "done"
        dead = self.actor.finished or not self.actor.process.alive
        return "failed" if dead else "running"


@dataclass
class TaskSet:
    """The tasks of a stage: each is tried until an attempt of it is done, or one has failed too often.

    Attributes:
        begin: Begins an attempt of a task on some host.
        tasks: How many tasks there are.
        most: The number of failed attempts of a task that fails the query.
        speculates: The probability per check that another attempt may be started beside a running one.
    """

    begin: Callable[[int], Attempt]
    tasks: int
    scheduler: Scheduler
    most: int = 3
    speculates: float = 0.02
    attempts: dict[int, list[Attempt]] = field(default_factory=dict)

    def run(self) -> list[Any]:
        """Return the result of each task; of several attempts that are done, the first one's.

        Raises:
            QueryFailedError: If a task has failed too often.
        """
        results: dict[int, Any] = {}
        self.attempts = {number: [] for number in range(self.tasks)}
        for number in range(self.tasks):
            self._begin(number)
        while len(results) < self.tasks:
            self.scheduler.step("waits for tasks", lambda: self._has_news(results))
            for number in range(self.tasks):
                if number not in results:
                    self._check_task(number, results)
        return [results[number] for number in range(self.tasks)]

    def _has_news(self, results: dict[int, Any]) -> bool:
        pending = [self.attempts[number] for number in range(self.tasks) if number not in results]
        if any(attempt.state == "done" for attempts in pending for attempt in attempts):
            return True
        if any(all(attempt.state == "failed" for attempt in attempts) for attempts in pending):
            return True
        return self.scheduler.random.random() < self.speculates

    def _check_task(self, number: int, results: dict[int, Any]) -> None:
        attempts = self.attempts[number]
        done = [attempt for attempt in attempts if attempt.state == "done"]
        if done:
            results[number] = done[0].result
        elif sum(attempt.state == "failed" for attempt in attempts) >= self.most:
            raise QueryFailedError(f"task {number} has failed {self.most} times")
        elif all(attempt.state == "failed" for attempt in attempts):
            self._begin(number)
        elif len(attempts) < self.most and self.scheduler.random.random() < 0.3:
            self.scheduler.note(f"task {number} is tried beside itself")
            self._begin(number)

    def _begin(self, number: int) -> None:
        attempt = self.begin(number)
        attempt.number = len(self.attempts[number])
        self.attempts[number].append(attempt)


class QueryFailedError(Exception):
    """The query ends with an error; the user starts the application again."""


def occupied(executor: Executor, partition: int) -> Callable[[], bool]:
    """Return a function that returns whether an attempt may use the state of a partition now."""

    def free() -> bool:
        holder = executor.busy.get(partition)
        return holder is None or not holder.alive

    return free
