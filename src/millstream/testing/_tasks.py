"""A task of the test driver: as on Spark, recreated for each micro-batch from committed stores and a snapshot.

Only tasks with user processors are recreated. The in-memory state of operators is part of the snapshot in any case, as the recordings
that run with a new task for each step show (``tests/golden/micro_batches.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Headers, Record
from millstream.core.model.serdes import Serde, read
from millstream.core.ports import StoreChange
from millstream.core.state.memory import MemoryStores


class DriverTask:
    """One task with its committed stores. Owned by the driver.

    Args:
        make: Creates the task from the last result of :meth:`Task.snapshot`, or None.
        keep_processors: Whether to keep one task object for all micro-batches.
    """

    def __init__(
        self,
        make: Callable[[Snapshot | None], Task],
        stores: MemoryStores,
        *,
        keep_processors: bool,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.task = make(snapshot)
        self.stores = stores
        self._make = make
        self._renewed = self.task.has_processors and not keep_processors
        self._begun = snapshot
        self._replaced: dict[str, dict[bytes, bytes | None]] = {}
        """By store, what has been replaced since the micro-batch began."""

    @property
    def id(self) -> TaskId:
        return self.task.id

    def begin(self, now_ms: int) -> None:
        """Begin a micro-batch. Recreates the task if it has user processors."""
        self._begun = self.snapshot()
        self._replaced.clear()
        if not self._renewed:
            return
        self.task.close()
        self.task = self._make(self._begun)
        self.task.init(now_ms)

    def roll_back(self) -> None:
        """Return to the beginning of the micro-batch, with a new task, which is not initialised."""
        self.stores.apply({name: list(rows.items()) for name, rows in self._replaced.items()})
        self._replaced.clear()
        self.task = self._make(self._begun)

    def snapshot(self) -> Snapshot:
        """Return the snapshot from which to continue, after committing what the test has written to stores."""
        for store in self.task.stores.values():
            drained = store.drain()
            self.stores.apply(drained.changes, drained.dropped)
        return self.task.snapshot()

    def step(self, now_ms: int, budget: int | None) -> Outcome:
        """Run one step and commit the changes of stores."""
        outcome = self.task.step(now_ms, budget)
        for name in outcome.dropped_slices:
            self._note_replaced(name, self.stores.open(name).scan(None, None))
        for name, rows in outcome.changes.items():
            self._note_replaced(name, rows)
        self.stores.apply(outcome.changes, outcome.dropped_slices)
        return outcome

    def _note_replaced(self, name: str, rows: Iterable[StoreChange]) -> None:
        get, known = self.stores.open(name).get, self._replaced.get(name)
        if known is None:  # the rule in a micro-batch of one record
            self._replaced[name] = {key: get(key) for key, _ in rows}
            return
        for key, _ in rows:
            if key not in known:
                known[key] = get(key)

    def store(self, name: str) -> Any:
        """Return a store. The object stays valid when the task is recreated."""
        return _Store(self, name)


class _Store:
    """A proxy for a store of the current task object."""

    __slots__ = ("_name", "_owner")

    def __init__(self, owner: DriverTask, name: str) -> None:
        self._owner = owner
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._owner.task.stores[self._name], attribute)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance() works for the kind of store
        return type(self._owner.task.stores[self._name])


def store_of(tasks: Collection[DriverTask], name: str, partition: int | None) -> Any:
    """Return a store of one of the tasks; see ``TopologyTestDriver.store``."""
    by_partition = {each.id.partition: each for each in tasks if name in each.task.stores}
    if not by_partition:
        known = ", ".join(dict.fromkeys(store for each in tasks for store in each.task.stores))
        raise StoreError(f"the topology has no store {name!r}; it has: {known}")
    if partition is None and len(by_partition) > 1:
        raise StoreError(
            f"store {name!r} is in {len(by_partition)} tasks, each of which has its own keys; give partition={min(by_partition)} to {max(by_partition)}"
        )
    if partition is not None and partition not in by_partition:
        raise StoreError(
            f"store {name!r} is in no task of partition {partition!r}, but in those of {sorted(by_partition)}"
        )
    return by_partition[min(by_partition) if partition is None else partition].store(name)


def stores_of(tasks: Collection[DriverTask], partition: int | None) -> dict[str, Any]:
    """Return the stores of the tasks by name; see ``TopologyTestDriver.stores``."""
    some = [each for each in tasks if partition is None or each.id.partition == partition]
    names = dict.fromkeys(name for each in some for name in each.task.stores)
    return {name: store_of(some, name, partition) for name in names}


CALLS: Final = {"calls_settled": "settled", "calls_retried": "retries", "calls_dead_lettered": "dead_letters"}
"""The counted fields of a task's calls, by the name of their metric."""


Numbers = tuple[dict[str, int], int, int, dict[str, int], dict[str, int]]
"""The fields of :class:`Counters` as plain data."""


@dataclass
class Counters:
    """Numbers since the start of the driver.

    Attributes:
        enforced: Records processed although an empty input might have had an earlier one.
        calls: Calls by outcome, under the names of their metrics.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    processed: int = 0
    enforced: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Counters:
        return Counters.of(self.numbers())

    def numbers(self) -> Numbers:
        """Return all numbers, for :meth:`of`. Faster than a copy, because it is taken for each micro-batch."""
        return dict(self.dropped), self.processed, self.enforced, dict(self.counted), dict(self.calls)

    @classmethod
    def of(cls, numbers: Numbers) -> Counters:
        dropped, processed, enforced, counted, calls = numbers
        return cls(Counter(dropped), processed, enforced, Counter(counted), Counter(calls))

    def add(self, outcome: Outcome) -> None:
        metrics = outcome.metrics
        self.dropped.update(metrics.dropped)
        self.processed += metrics.processed
        self.enforced += metrics.enforced
        self.counted.update(metrics.counted)
        for figures in outcome.calls.values():
            self.calls.update({name: getattr(figures, figure) for name, figure in CALLS.items()})


class Progress(NamedTuple):
    """What a failed micro-batch of the driver returns to, besides the tasks; see ``DriverRunner``."""

    ends: dict[TopicPartition, int]
    committable: dict[TopicPartition, int]
    finished: dict[TopicPartition, dict[TaskId, int]]
    unfinished: dict[TaskId, dict[str, int]]
    waiting: dict[TaskId, str]
    numbers: Numbers


Serdes = tuple[Serde[Any], Serde[Any]]


class Sent(NamedTuple):
    """A serialised record that was sent to a topic. The timestamp is in ms since the epoch."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    partition: int
    serdes: Serdes
    topic: str

    def record(self, serdes: tuple[Serde[Any] | None, Serde[Any] | None] = (None, None)) -> Record[Any, Any]:
        """Return the deserialised record, with the serdes of the sink unless others are given."""
        key, value = (given or of_sink for given, of_sink in zip(serdes, self.serdes))
        return Record(
            read(key, self.key, self.topic, "key", self.headers),
            read(value, self.value, self.topic, "value", self.headers),
            self.timestamp,
            self.headers,
        )
