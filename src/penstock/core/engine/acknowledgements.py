"""Acknowledgements: the records that a processor has taken and works on by itself (KIP-311, "lightweight approach").

A processor may do asynchronous work with means of its own, a pool of threads say. Then only it knows when a record is finished.
It says so with ``context.acknowledge(metadata)``; until then the record is unfinished: its offset is not committed.

What has not been acknowledged lies in a store of the task at the end of each step. A new processor, which each micro-batch on
Spark has, is given those records again, in their order and before any new ones: the work the old one had begun may be lost
with its process. So such a processor sees a record at least once, and keeps its work in the module, not in itself, where it
wants to find it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.core.asynchronous.call import Call, Settled, Ticket
from penstock.core.asynchronous.frontier import Frontier
from penstock.core.engine.ledger import UNLIMITED, CallFigures
from penstock.core.engine.runtime import Runtime
from penstock.core.engine.unfinished import Unfinished, UnfinishedRows
from penstock.core.model.calls import Calls
from penstock.core.model.errors import ProcessingError
from penstock.core.model.ids import TopicPartition
from penstock.core.model.record import Headers, RecordMetadata
from penstock.core.plan.asynchronous import Carried


class Acknowledgements:
    """The unacknowledged records of one processor. Owned by the task.

    Args:
        name: The processor's node.
        carried: What keeps them.
        runtime: The task.
        process: Hands a record to the processor.
    """

    calls: Calls | None = None

    def __init__(
        self, name: str, carried: Carried, runtime: Runtime, process: Callable[[Any, Any, int, Headers], None]
    ) -> None:
        self.name = name
        self._runtime = runtime
        self._process = process
        self._serdes = (carried.key, carried.value)
        self._rows = UnfinishedRows(runtime.stores[carried.store.name])
        self._unfinished: dict[int, Unfinished] = {}
        self._at: dict[RecordMetadata, list[int]] = {}
        self._changed: set[int] = set()
        self._again: list[Unfinished] = []
        self._acknowledged = 0
        self._memory = runtime.memory(carried.store.name)
        for one in self._rows.read():
            self._enter(one)
            self._again.append(one)
        after = 1 + max(self._unfinished, default=-1)
        self._next: int = self._memory.get("next", after)
        runtime.books.append(self)

    def take(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Hand the current record to the processor, as unfinished."""
        runtime = self._runtime
        origin = runtime.metadata()
        if origin is not None:  # nothing waits for what a punctuator sent
            one = Unfinished(self._next, origin, key, value, timestamp, headers, None, runtime.now_ms)
            self._next += 1
            self._enter(one)
            self._changed.add(one.number)
        self._process(key, value, timestamp, headers)

    def acknowledge(self, at: RecordMetadata) -> None:
        """Take note that what came from an offset is finished.

        Raises:
            ProcessingError: If nothing of it is unfinished.
        """
        numbers = self._at.pop(at, None)
        if numbers is None:
            raise ProcessingError(
                f"processor {self.name!r} acknowledges {at}, which it does not have: it was acknowledged before, or never came "
                "here. Acknowledge each record once, with the record_metadata it was processed with"
            )
        partition = TopicPartition(at.topic, at.partition)
        for number in numbers:
            del self._unfinished[number]
            self._runtime.frontiers[partition].end(at.offset)
            self._changed.add(number)
            self._acknowledged += 1

    def give_up(self) -> None:
        """Take note that the current record has failed and been treated by the error policy: that finishes it."""
        at = self._runtime.metadata()
        if at is not None and at in self._at:
            self.acknowledge(at)

    def collect(self) -> None:
        """Give the processor again what the one before has not acknowledged."""
        again, self._again = self._again, []
        for one in again:
            self._runtime.held = one
            try:
                self._process(one.key, one.value, one.timestamp, one.headers)
            finally:
                self._runtime.held = None

    def save(self) -> None:
        """Bring the store up to date."""
        self._memory["next"] = self._next
        self._rows.write(sorted(self._changed), self._unfinished)
        self._changed.clear()

    def issue(self) -> Iterable[Call]:
        """Give nothing: the processor calls by itself."""
        return ()

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Take no note: nothing was issued."""

    def under_way(self) -> Iterable[Ticket]:
        """Give nothing: nothing was issued."""
        return ()

    def lost(self, ticket: Ticket) -> None:
        """Take no note: nothing was issued."""

    def next_due(self) -> int | None:
        """Give None: nobody but the processor knows."""
        return None

    def figures(self) -> CallFigures:
        """Give what there is to see, and begin to count anew."""
        oldest = next(iter(self._unfinished.values()), None)
        came = None if oldest is None else oldest.came_ms
        count, ended = len(self._unfinished), self._acknowledged
        figures = CallFigures(with_station=count, room=UNLIMITED, oldest_ms=came, settled=ended)
        self._acknowledged = 0
        return figures

    def _enter(self, one: Unfinished) -> None:
        assert one.origin is not None
        one.serdes = self._serdes
        self._unfinished[one.number] = one
        self._at.setdefault(one.origin, []).append(one.number)
        partition = TopicPartition(one.origin.topic, one.origin.partition)
        self._runtime.frontiers.setdefault(partition, Frontier()).begin(one.origin.offset)
