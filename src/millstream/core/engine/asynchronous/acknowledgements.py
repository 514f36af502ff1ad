"""Acknowledgements: processors that do their own asynchronous work and report when a record is finished.

Until the processor calls ``context.acknowledge(metadata)``, the record is unfinished, and its offset is not committed. At the end of each
step, unacknowledged records are stored in the task. The next processor object receives them again, in order and before any new ones,
because the work of the old one may be lost with its process. A processor therefore sees a record at least once.

*Siblings* are records that an operator upstream, such as ``flat_map``, derived from one record. They share an offset, so an
acknowledgement does not identify one of them. They finish together, when there are as many acknowledgements as siblings.
Acknowledgements are not kept over restarts: the processor receives all siblings again.

Rejected: to attribute an acknowledgement to the current record. It may be meant for a sibling whose work has just ended.

Source: KIP-311, "lightweight approach".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from millstream.core.asynchronous.operator_state import AsyncOperatorState, CallFigures
from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord, InFlightStore
from millstream.core.engine.runtime import Runtime
from millstream.core.model.durations import earliest
from millstream.core.model.errors import ProcessingError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, RecordMetadata
from millstream.core.topology.async_nodes import Carried
from millstream.core.topology.processor import PunctuationType

_LATEST_MS: Final = 1_000
"""The longest time until the next step while records are unacknowledged: their work may have ended."""


class Acknowledgements(AsyncOperatorState):
    """The unacknowledged records of one processor. Owned by the task.

    Args:
        most: Limit of unacknowledged records; at the limit, no more records are taken.
    """

    def __init__(
        self,
        name: str,
        carried: Carried,
        most: int,
        runtime: Runtime,
        process: Callable[[Any, Any, int, Headers], None],
    ) -> None:
        self.name = name
        self._most = most
        self._runtime = runtime
        self._process = process
        self._serdes = (carried.key, carried.value)
        self._rows = InFlightStore(runtime.stores[carried.store.name])
        self._unfinished: dict[int, InFlightRecord] = {}
        self._numbers_of: dict[RecordMetadata, set[int]] = {}
        self._acknowledgements: Counter[RecordMetadata] = Counter()
        """Acknowledgements of records that are unfinished because not all siblings have been acknowledged."""
        self._current: InFlightRecord | None = None
        self._itself = False
        """True if the current record or a sibling was acknowledged while the current record was processed."""
        self._changed: set[int] = set()
        self._restored: list[InFlightRecord] = []
        self._acknowledged = 0
        self._memory = runtime.memory(carried.store.name)
        for record in self._rows.read():
            self._enter(record)
            self._restored.append(record)
        after = 1 + max(self._unfinished, default=-1)
        self._next: int = self._memory.get("next", after)
        runtime.async_operators.append(self)

    def take(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Pass the current record to the processor, as unfinished."""
        runtime = self._runtime
        origin = runtime.metadata()
        if origin is None:  # a punctuator forwarded the record, so there is no offset to hold back
            self._process(key, value, timestamp, headers)
            return
        record = InFlightRecord(
            self._next, origin, key, value, timestamp, headers=headers, request=None, came_ms=runtime.now_ms
        )
        self._next += 1
        self._enter(record)
        self._changed.add(record.number)
        self._process_record(record)

    def acknowledge(self, origin: RecordMetadata) -> None:
        """Acknowledge a record by its offset. Siblings finish when all have been acknowledged.

        Raises:
            ProcessingError: If no record of that offset is unfinished.
        """
        if origin not in self._numbers_of:
            raise ProcessingError(
                f"processor {self.name!r} acknowledges {origin}, which is not pending: it was acknowledged before, or this processor never "
                "received it. Acknowledge each record once, with the record_metadata with which it was processed"
            )
        self._acknowledgements[origin] += 1
        self._itself = self._itself or (self._current is not None and self._current.origin == origin)
        self._end_if_all(origin)

    def give_up(self) -> None:
        """Finish the current record, but not its siblings, after the record failed and the error policy handled it."""
        record = self._current
        if record is None or record.origin is None or record.number not in self._unfinished:
            return
        if self._itself:  # the record was acknowledged before it failed
            self._acknowledgements[record.origin] -= 1
        self._end(record.number)
        self._end_if_all(record.origin)

    def collect(self) -> None:
        """Pass the records that were unacknowledged at the last commit to the processor again."""
        records, self._restored = self._restored, []
        for record in records:
            if record.number not in self._unfinished:  # acknowledged with another record
                continue
            self._runtime.override = record
            try:
                self._process_record(record)
            finally:
                self._runtime.override = None

    def save(self) -> None:
        self._memory["next"] = self._next
        self._rows.write(sorted(self._changed), self._unfinished)
        self._changed.clear()

    def next_due(self) -> int | None:
        """Return when the next step is due, at most one second from now, ms since the epoch; None without unacknowledged records."""
        if not self._unfinished:
            return None
        wake_ms = self._runtime.punctuations.next_due(PunctuationType.WALL_CLOCK_TIME)
        return earliest(wake_ms, self._runtime.now_ms + _LATEST_MS)

    @property
    def unfinished(self) -> bool:
        return bool(self._unfinished)

    def figures(self) -> CallFigures:
        oldest = next(iter(self._unfinished.values()), None)
        oldest_ms = None if oldest is None else oldest.came_ms
        count, ended = len(self._unfinished), self._acknowledged
        room = max(self._most - count, 0)
        figures = CallFigures(with_async_worker=count, room=room, oldest_ms=oldest_ms, settled=ended)
        self._acknowledged = 0
        return figures

    def _process_record(self, record: InFlightRecord) -> None:
        self._current, self._itself = record, False
        try:
            self._process(record.key, record.value, record.timestamp, record.headers)
        finally:
            self._current = None

    def _end_if_all(self, origin: RecordMetadata) -> None:
        numbers = self._numbers_of.get(origin, ())
        if self._acknowledgements[origin] >= len(numbers):
            for number in tuple(numbers):
                self._end(number)

    def _end(self, number: int) -> None:
        origin = self._unfinished.pop(number).origin
        assert origin is not None
        self._changed.add(number)
        self._acknowledged += 1
        self._runtime.unfinished_offsets[TopicPartition(origin.topic, origin.partition)].end(origin.offset)
        self._numbers_of[origin].remove(number)
        if not self._numbers_of[origin]:
            del self._numbers_of[origin]
            self._acknowledgements.pop(origin, None)

    def _enter(self, record: InFlightRecord) -> None:
        assert record.origin is not None
        record.serdes = self._serdes
        self._unfinished[record.number] = record
        self._numbers_of.setdefault(record.origin, set()).add(record.number)
        assert record.partition is not None
        self._runtime.unfinished_offsets[record.partition].begin(record.origin.offset)
