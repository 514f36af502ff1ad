"""In-flight records of one asynchronous operator, from arrival until the effects are applied.

A record has three stages (KIP-311). It is *issued*: the task sends it to the async worker. It is *executed*: the async worker calls the
user's function, across any number of micro-batches. It *retires*: the task applies the effects, all in one step and in the order that
the operator guarantees. Only then does its offset count as processed. In detail, the states are:

========== ============================================ =================================================================
state      location                                     next state
========== ============================================ =================================================================
spilled    spill queue, behind many records of its key  queued
queued     in-flight window                             in flight
in flight  async worker, under its latest ticket        queued (returned or lost), waiting, finished
waiting    in-flight window, until its next attempt     delayed, in flight
delayed    delay queue, if it holds up no other record  waiting, when it is due or when another record of its key arrives
finished   reorder buffer, behind unfinished records    retired
========== ============================================ =================================================================

Between steps, the records are in stores of the task: inputs, numbers of attempts, due times, and results that wait for their turn. A
restarted operator continues from the stores. It does not issue calls again that the async worker still has; it issues calls again that
were lost, as the same attempt (:meth:`InFlightRecords.lost`). A record that is sent again gets a new *ticket*, and results for its
earlier tickets are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

from millstream.core.asynchronous.call import (
    LEAST_MS,
    Call,
    Done,
    Failed,
    Returned,
    Settled,
    Skipped,
    Ticket,
    Waits,
    described,
    in_words,
)
from millstream.core.asynchronous.limits import endpoint_of
from millstream.core.asynchronous.operator_state import CallFigures
from millstream.core.asynchronous.reorder_buffer import ReorderBuffer
from millstream.core.engine.asynchronous.backlog import Backlog
from millstream.core.engine.asynchronous.backlog_stores import StoredRecord
from millstream.core.engine.asynchronous.backpressure import Backpressure, HotKeys
from millstream.core.engine.asynchronous.call_failures import CallFailures
from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord, InFlightStore, own
from millstream.core.engine.asynchronous.ordering import Ordering
from millstream.core.engine.asynchronous.record_keys import key_id
from millstream.core.engine.asynchronous.requests import Request
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.runtime import Runtime
from millstream.core.model.durations import earliest
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers
from millstream.core.topology.async_nodes import Asynchronous, IssuingProcess

_AHEAD_MS: Final = 2_000
"""How long before its due time a record is sent, so that its call can begin on time."""
_STEP_MS: Final = 1_000
"""A clock that moves back by less is ignored, because successive planners may run on hosts with different clocks."""
_PER_KEY: Final = 128
"""Minimum limit of records in flight per key, so that the calls of a key follow each other without a micro-batch in between."""
RequestOf: TypeAlias = Callable[[InFlightRecord], tuple[Callable[..., Any], tuple[Any, ...]]]


class InFlightRecords:
    """The in-flight records of one operator. Owned by the task.

    Args:
        request_of: Returns the function to call for a record, and the arguments.
        apply: Applies the effects of a record, from its result.
        check: Raises if the program can no longer finish a record from the checkpoint.
        per_key: How many records of a key may be in flight. With 1, a record is issued after the effects of the previous one are applied.
    """

    def __init__(
        self,
        node: Asynchronous | IssuingProcess,
        runtime: Runtime,
        request_of: RequestOf,
        apply: Callable[[InFlightRecord, Any], None],
        *,
        check: Callable[[InFlightRecord], None] = lambda record: None,
        per_key: int = _PER_KEY,
    ) -> None:
        carried = node.carried
        self.name = node.name
        self.calls = node.calls
        self._runtime = runtime
        self._serdes = (carried.key, carried.value)
        self._store = InFlightStore(runtime.stores[carried.store.name])
        self._request_of, self._apply_effects, self._check = request_of, apply, check
        self._failures = CallFailures(node.name, node.calls.on_failure, runtime)
        self._memory = runtime.memory(carried.store.name)
        self._ordering = Ordering.of(node.calls)
        self._one_by_one = self._ordering.by_key and per_key == 1
        self._flow = Backpressure(node.calls, self._ordering, per_key, self._memory)
        self._window = self._flow.window
        self._reorder_buffer = ReorderBuffer()
        self._backlog = Backlog(node, runtime, self._ordering, self._window, self._reorder_buffer)
        self._records: dict[int, InFlightRecord] = {}
        self._changed: set[int] = set()
        self._results: list[tuple[Ticket, Settled]] = []
        self._retiring: list[int] = []
        """Records that retire at the next step: their results must be committed first, an edit has changed the order, or a call could not be
        made."""
        self._ending: list[int] = []
        """Records that leave the window at the next step."""
        self._reloaded: list[int] = []
        """Numbers of records that were loaded from the backlog, as a heap. It may include retired records."""
        self._counts = dict.fromkeys(("settled", "retries", "dead_letters", "ignored"), 0)
        self._resume()
        self._next: int = self._memory["next"] if "next" in self._memory else self._first_unused()
        self._hot_keys = HotKeys(self._records, self._next)
        runtime.async_operators.append(self)

    # Issue.

    def take(
        self, key: Any, value: Any, timestamp: int, headers: Headers, request: Request | None = None
    ) -> None:
        origin, now_ms = self._runtime.metadata(), self._runtime.now_ms
        record = InFlightRecord(
            self._next, origin, key, own(value), timestamp, headers=headers, request=request, came_ms=now_ms
        )
        self._next += 1
        self._identify(record)
        if record.partition is not None and record.origin is not None:
            self._runtime.unfinished_offsets[record.partition].begin(record.origin.offset)
        if self._backlog.spill(record):
            if self._ordering.by_key:
                self._hot_keys.note_spilled(record)
            return
        blocking = self._backlog.take_blocking(record)
        if blocking is not None:
            self._reload(blocking)
        self._records[record.number] = record
        self._reorder_buffer.add(record.number, self._ordering.reorder_group(record))
        self._window.add(record.number, self._ordering.queue_key(record))
        self._changed.add(record.number)

    def issue(self) -> list[Call]:
        runtime, calls = self._runtime, []
        soon = runtime.now_ms + _AHEAD_MS
        for stored in chain(self._backlog.take_due(soon), self._backlog.refill()):
            self._reload(stored)
        while (number := self._window.take(soon)) is not None:
            record = self._records[number]
            try:
                function, args = self._request_of(record)
                endpoint = endpoint_of(self.calls, record.key, record.value)
            except Exception as error:
                # The caches have been flushed, so tables downstream forward nothing more in this step.
                failed = described(Failed(record.attempt, in_words(error), error))
                self._settle(record, failed, at_once=False)
                continue
            record.turn += 1
            record.epoch = runtime.epoch
            self._changed.add(number)
            ticket = Ticket(self.name, number, record.turn, runtime.epoch)
            key, due_ms = self._ordering.queue_key(record), record.due_ms or 0
            calls.append(Call(ticket, function, args, key, record.attempt, record.begun_ms, endpoint, due_ms))
        return calls

    def under_way(self) -> list[Ticket]:
        return [
            Ticket(self.name, record.number, record.turn, record.epoch)
            for record in self._records.values()
            if record.epoch is not None
        ]

    def lost(self, ticket: Ticket) -> None:
        """Take back a call that the async worker has lost. It is issued again, as the same attempt."""
        record = self._record_of(ticket)
        if record is not None:
            record.epoch = None
            self._window.give_back(record.number)
            self._changed.add(record.number)

    # Retire.

    def done(self, ticket: Ticket, settled: Settled) -> None:
        self._results.append((ticket, settled))

    def collect(self) -> None:
        """Process the results since the last step, in order."""
        self._follow_clock()
        retiring, self._retiring = self._retiring, []
        for number in retiring:
            self._retire(self._records[number])
        ending, self._ending = self._ending, []
        for number in ending:
            self._window.end(number)
        results, self._results = self._results, []
        self._flow.set_limit(sum(not isinstance(settled, Returned) for _, settled in results))
        answered: list[InFlightRecord] = []
        returned: list[int] = []
        for ticket, settled in results:
            record = self._record_of(ticket)
            if record is None:
                self._counts["ignored"] += 1
            elif isinstance(settled, Returned):
                record.epoch = None
                self._changed.add(record.number)
                returned.append(record.number)
            else:
                answered.append(record)
                self._settle(record, settled, at_once=self._runtime.repeats_sends)
        for number in sorted(returned, reverse=True):  # each is put at the head of its key queue
            self._window.give_back(number)
        self._flow.set_limits_of_keys(record.key_id for record in answered)

    def _settle(self, record: InFlightRecord, settled: Settled, *, at_once: bool) -> None:
        """Process the result of a call. If not at once, records retire at the next step."""
        record.epoch = None
        self._changed.add(record.number)
        self._counts["settled"] += 1
        if isinstance(settled, Waits):
            self._wait(record, settled)
            return
        if isinstance(settled, Failed):
            self._failures.stop_if_final(record, settled)
        record.settled = settled
        if at_once or not self._one_by_one:
            self._window.end(record.number)
        else:
            self._ending.append(record.number)
        retiring = self._reorder_buffer.finish(record.number)
        if not at_once:
            self._retiring += retiring
            return
        for number in retiring:
            self._retire(self._records[number])

    def _wait(self, record: InFlightRecord, settled: Waits) -> None:
        self._counts["retries"] += settled.why == "retry"
        self._failures.note_retry(record, settled)
        record.attempt, record.begun_ms = settled.attempt, settled.begun_ms
        record.due_ms, record.why = settled.due_ms, settled.why
        if settled.why == "until":
            record.due_ms = max(settled.due_ms, self._runtime.now_ms + LEAST_MS)
        self._window.wait(record.number, record.due_ms)

    def _retire(self, record: InFlightRecord) -> None:
        runtime, settled = self._runtime, record.settled
        runtime.override = record
        try:
            if isinstance(settled, Done):
                self._apply(record, settled.value)
            elif isinstance(settled, Failed):
                self._counts["dead_letters"] += self._failures.drop(record, settled)
            else:
                assert isinstance(settled, Skipped), settled
                runtime.drop("skipped call")
        finally:
            runtime.override = None
        del self._records[record.number]
        self._changed.add(record.number)
        if record.partition is not None and record.origin is not None:
            runtime.unfinished_offsets[record.partition].end(record.origin.offset)

    def _apply(self, record: InFlightRecord, value: Any) -> None:
        try:
            self._apply_effects(record, value)
        except Exception as error:
            self._runtime.on_error("process", self.name, error)

    # State.

    def save(self) -> None:
        self._memory["next"] = self._next
        records, now_ms = self._records, self._runtime.now_ms
        for number in self._changed:
            record = records.get(number)
            if record is not None and self._backlog.can_delay(record, now_ms):
                self._backlog.delay(record)
                del records[number]
        if self._changed:
            self._memory["now_ms"] = now_ms
        self._store.write(sorted(self._changed), records)
        self._changed.clear()
        self._backlog.save()

    def next_due(self) -> int | None:
        """Return when the next record must be sent or retires, ms since the epoch, not before now; None if no record waits."""
        if self._retiring:
            return self._runtime.now_ms
        first = earliest(self._window.next_due(), self._backlog.next_due)
        return None if first is None else max(first - _AHEAD_MS, self._runtime.now_ms)

    @property
    def unfinished(self) -> bool:
        return bool(self._records or len(self._backlog.delayed) or len(self._backlog.spilled))

    def figures(self) -> CallFigures:
        window, delayed, spilled = self._window, self._backlog.delayed, self._backlog.spilled
        waits = sum(self._records[number].why != "retry" for number in window.waiting_numbers())
        figures = CallFigures(
            with_async_worker=window.in_flight - len(self._ending),
            waiting=window.waiting + len(delayed),
            delayed=waits + delayed.delayed,
            parked=window.parked + len(spilled),
            held=self._reorder_buffer.finished + len(self._retiring),
            room=self._flow.room(len(spilled)),
            most_per_key=window.longest + (0 if self._ordering.by_partition else spilled.longest),
            oldest_ms=self._oldest_ms(),
            hottest=self._hot_keys.take_hottest(self._next) if self._ordering.by_key else None,
            **self._counts,
        )
        self._counts = dict.fromkeys(self._counts, 0)
        return figures

    def _oldest_ms(self) -> int | None:
        records, reloaded = self._records, self._reloaded
        while reloaded and reloaded[0] not in records:
            heappop(reloaded)
        # All records are in order, except those that were reloaded.
        numbers = [next(iter(records), None), reloaded[0] if reloaded else None]
        received_ms = [records[number].came_ms for number in numbers if number is not None]
        return earliest(*received_ms, self._backlog.oldest_ms)

    def _record_of(self, ticket: Ticket) -> InFlightRecord | None:
        """Return the record of a ticket; None if the ticket is not the record's latest."""
        record = self._records.get(ticket.number)
        if record is None or record.epoch != ticket.epoch or record.turn != ticket.turn:
            return None
        return record

    # Restart.

    def _resume(self) -> None:
        """Load the records that were unfinished at the last commit."""
        backlog = self._backlog
        for partition, offset, times in chain(backlog.delayed.offsets(), backlog.spilled.offsets()):
            self._runtime.unfinished_offsets[partition].begin(offset, times)
        records = self._store.read()
        offsets: dict[TopicPartition, list[int]] = {}
        for record in records:
            if record.partition is not None and record.origin is not None:
                offsets.setdefault(record.partition, []).append(record.origin.offset)
        for partition, begun in offsets.items():
            self._runtime.unfinished_offsets[partition].begin_all(begun)
        for number, row in backlog.take_misplaced():
            self._changed.add(number)
            records.append(InFlightRecord.from_row(number, row))
        for record in sorted(records, key=attrgetter("number")):
            self._enter(record)

    def _first_unused(self) -> int:
        """Return an unused record number. Needed if the operator's memory is lost."""
        return 1 + max(max(self._records, default=-1), self._backlog.last_number())

    def _enter(self, record: InFlightRecord) -> None:
        """Add a record that was read from a store."""
        self._identify(record)
        self._check(record)
        number = record.number
        self._records[number] = record
        self._reorder_buffer.add(number, self._ordering.reorder_group(record))
        if record.settled is not None:
            self._retiring += self._reorder_buffer.finish(number)
            return
        key, in_flight = self._ordering.queue_key(record), record.epoch is not None
        self._window.resume(number, key, due_ms=None if in_flight else record.due_ms, in_flight=in_flight)

    def _reload(self, stored: StoredRecord) -> None:
        number, row = stored
        self._enter(InFlightRecord.from_row(number, row))
        self._changed.add(number)
        heappush(self._reloaded, number)

    def _follow_clock(self) -> None:
        """If the clock moved back, move the due times of retries and delays back, too. A time chosen with ``until`` stays."""
        back_ms = self._memory.get("now_ms", self._runtime.now_ms) - self._runtime.now_ms
        if back_ms < _STEP_MS:
            return
        for stored in self._backlog.take_due(NEVER - 1):
            self._reload(stored)
        for number, record in self._records.items():
            if record.due_ms is None or record.settled is not None:
                continue
            self._changed.add(number)
            if record.why == "until":
                continue
            record.due_ms -= back_ms
            record.begun_ms = None if record.begun_ms is None else record.begun_ms - back_ms
            self._window.bring_forward(number, record.due_ms)

    def _identify(self, record: InFlightRecord) -> None:
        record.serdes = self._serdes
        record.key_id = key_id(record.key, self._serdes[0])
