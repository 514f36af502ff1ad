"""A task of the test driver: as on Spark it is made anew for each micro-batch, from committed stores and a snapshot.

Only tasks with processors of the user are: what operators keep in memory is in the snapshot anyway, as the recordings that run
with a new task for each step show (``tests/golden/micro_batches.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from millstream.core.engine.outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.state.memory import MemoryStores


class DriverTask:
    """One task with its committed stores. Owned by the driver.

    Args:
        make: Makes the task from what :meth:`Task.snapshot` gave last time.
        stores: Committed content.
        keep_processors: Whether one object is kept for all micro-batches.
        snapshot: What the task begins with.

    Attributes:
        task: The task, as the micro-batch under way has it.
        stores: Committed content.
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

    @property
    def id(self) -> TaskId:
        """The task's id."""
        return self.task.id

    def begin(self, now_ms: int) -> None:
        """Begin another micro-batch."""
        if not self._renewed:
            return
        snapshot = self.snapshot()
        self.task.close()
        self.task = self._make(snapshot)
        self.task.init(now_ms)

    def snapshot(self) -> Snapshot:
        """Return what the task would go on from; what a test has written to stores is committed."""
        for store in self.task.stores.values():
            drained = store.drain()
            self.stores.apply(drained.changes, drained.dropped)
        return self.task.snapshot()

    def step(self, now_ms: int, budget: int | None) -> Outcome:
        """Take a step, and commit what has changed in stores."""
        outcome = self.task.step(now_ms, budget)
        self.stores.apply(outcome.changes, outcome.dropped_slices)
        return outcome

    def store(self, name: str) -> Any:
        """Return a store that stays the same for the test while the task is made anew."""
        return _Store(self, name) if self._renewed else self.task.stores[name]


class _Store:
    """The store of a name, in whatever task there is now."""

    __slots__ = ("_name", "_owner")

    def __init__(self, owner: DriverTask, name: str) -> None:
        self._owner = owner
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._owner.task.stores[self._name], attribute)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance() tells the kind of store
        return type(self._owner.task.stores[self._name])


def store_of(tasks: Collection[DriverTask], name: str, partition: int | None) -> Any:
    """Return a store of one of the tasks; see ``TopologyTestDriver.store``."""
    found = {each.id.partition: each for each in tasks if name in each.task.stores}
    if not found:
        known = ", ".join(dict.fromkeys(store for each in tasks for store in each.task.stores))
        raise StoreError(f"the topology has no store {name!r}; it has: {known}")
    if partition is None and len(found) > 1:
        raise StoreError(
            f"store {name!r} is in {len(found)} tasks, each of which has its own keys; give partition={min(found)} to {max(found)}"
        )
    if partition is not None and partition not in found:
        raise StoreError(
            f"store {name!r} is in no task of partition {partition!r}, but in those of {sorted(found)}"
        )
    return found[min(found) if partition is None else partition].store(name)


def stores_of(tasks: Collection[DriverTask], partition: int | None) -> dict[str, Any]:
    """Return the stores of the tasks by name; see ``TopologyTestDriver.stores``."""
    some = [each for each in tasks if partition is None or each.id.partition == partition]
    names = dict.fromkeys(name for each in some for name in each.task.stores)
    return {name: store_of(some, name, partition) for name in names}
