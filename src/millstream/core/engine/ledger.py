"""Ledger: the unfinished records of one asynchronous operator, from when they come to when their effects are applied.

A record goes through three stages (KIP-311): it is *issued*: handed to the async worker, which calls the user's
function for it; it is *executed* there, across any number of micro-batches; it *retires*: its effects are applied by the task, all of
them in one step and in the order the operator promises, and only then does its offset count as processed.

Between two steps the ledger lies in a store of the task, so what is unfinished is committed together with everything else the
micro-batch did: inputs, numbers of attempts, due times, results that wait for their turn. A record that begins and ends within
a step leaves no trace there. After a restart the ledger goes on where it was. The calls that the async worker still has are not
issued again; those it has lost are (:meth:`Ledger.lost`), as the same attempt.

Of a record that was handed over, the *ticket* of the last time counts. Answers to other tickets are ignored.
"""

from __future__ import annotations

import pickle
import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from heapq import heappop, heappush
from io import BytesIO
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from millstream.core.asynchronous.book import CallFigures
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
    in_words,
)
from millstream.core.asynchronous.frontier import Frontier
from millstream.core.asynchronous.handover import Handover
from millstream.core.asynchronous.retirement import Retirement
from millstream.core.engine.asynchronous.unfinished import Request, Unfinished, UnfinishedRows, in_bytes
from millstream.core.engine.failures import where
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.runtime import Runtime
from millstream.core.model.answers import DeadLetter
from millstream.core.model.calls import Calls
from millstream.core.model.durations import earliest
from millstream.core.model.errors import ProcessingError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers
from millstream.core.topology.asynchronous import Carried

if TYPE_CHECKING:
    from millstream.core.engine.asynchronous.delay_queue import DelayQueue
    from millstream.core.engine.asynchronous.overflow import Overflow

WITH_STATION: Final = 10_000
"""How many records of an operator a task may hand over at least: the async worker must not run dry between two micro-batches."""
_TIMES_IN_FLIGHT: Final = 20
_TIMES_ANSWERED: Final = 2
"""How many times as many as have been answered since the last step, so that the async worker does not run dry."""
_TIMES_ALL_ANSWERED: Final = 4
"""The same if nearly all have been: then it did."""
_NEARLY: Final = 9 / 10
_MOST_WITH_STATION: Final = 100_000
_FADES: Final = 3 / 4
"""What is left of it in the next step: some steps follow each other so soon that little has been answered."""
_IN_OVERFLOW: Final = 100_000
"""How many records of hot keys may be parked before no more records are taken in."""
_AHEAD_MS: Final = 2_000
"""How long before it is due a record is handed over: its call begins in time, whenever the next micro-batch does."""
_STEP_MS: Final = 1_000
"""A clock that is less behind than this went on: planners of two hosts may follow each other."""
_IN_LINE: Final = 128
"""How many records of one key may be handed over at least: they follow each other without a micro-batch in between."""
_AS_THEY_ARE: Final = frozenset({str, bytes, int, type(None)})
"""Types of keys of which two are equal if, and only if, their bytes are; of 1, 1.0 and True that is not so."""
_SAMPLE: Final = 256
"""How many records of a step are looked at to see which key is hot."""
_TOLD_AFTER: Final = frozenset({5, 50, 500, 5_000, 50_000})
"""After how many failed attempts at a record the log tells why: an application that tries again for ever must say so."""
_CLOSED_LINE: Final = 32
"""How many unfinished records of one key it has at hand while one of them waits and closes the key to the others."""
_LONG_LINE: Final = 512
"""How many unfinished records of one key a ledger has at hand at least; of a partition whose order is kept, as many as it hands over."""


class Ledger:
    """The unfinished records of one operator. Owned by the task.

    Args:
        name: The operator's node.
        calls: How it calls.
        carried: What keeps unfinished records.
        runtime: The task.
        asks: Returns the function to call for a record, and its arguments.
        applies: Applies the effects of a result.
        delay_queue: Stores the records that wait for a time; at order ``partition`` such records block others and stay in the ledger.
        overflow: Where those lie that come behind many of their key; at order ``partition``, of their partition.
        serial: How many records of a key may be in flight; with one, the next is issued after the effects of the last are applied.
    """

    def __init__(
        self,
        name: str,
        calls: Calls,
        carried: Carried,
        runtime: Runtime,
        asks: Callable[[Unfinished], tuple[Callable[..., Any], tuple[Any, ...]]],
        applies: Callable[[Unfinished, Any], None],
        delay_queue: DelayQueue,
        overflow: Overflow,
        *,
        serial: int = _IN_LINE,
    ) -> None:
        self.name = name
        self.calls: Calls | None = calls
        self._calls = calls
        self._runtime = runtime
        self._serdes = (carried.key, carried.value)
        self._rows = UnfinishedRows(runtime.stores[carried.store.name])
        self._asks, self._applies = asks, applies
        self._closing = calls.order == "key"
        self._delays = calls.order != "partition"
        self._lined_up = self._closing or calls.max_in_flight_per_key is not None
        self._in_line = serial
        self._one_by_one = self._closing and serial == 1
        self._parks_by = "partition" if calls.order == "partition" else "key" if self._lined_up else None
        self._least = max(WITH_STATION, _TIMES_IN_FLIGHT * calls.max_in_flight)
        self._handover = Handover(self._least, serial if self._lined_up else None, closing=self._closing)
        self._retirement = Retirement()
        self._unfinished: dict[int, Unfinished] = {}
        self._changed: set[int] = set()
        self._answers: list[tuple[Ticket, Settled]] = []
        self._ran_dry = True
        """Whether the async worker had no call left at the last step, as far as is known."""
        self._retiring: list[int] = []
        """What retires at the beginning of the next step: what an answer must be committed for first, and after a restart what no
        longer has to wait because the order was edited."""
        self._ending: list[int] = []
        """What leaves its line at the beginning of the next step."""
        self._came_again: list[int] = []
        """Numbers of records that came to hand from a store, the smallest first; some have retired."""
        self._counts = dict.fromkeys(("settled", "retries", "dead_letters", "ignored"), 0)
        self._memory = runtime.memory(carried.store.name)
        self._delay_queue = delay_queue
        self._overflow = overflow
        self._resume()
        self._next: int = self._memory["next"] if "next" in self._memory else self._first_free()
        self._came_until = self._next
        self._parked: dict[int, Hashable] = {}
        """Keys of the records that were parked in this step, by number, where a key may be hot."""
        runtime.books.append(self)

    # Issue.

    def take(
        self, key: Any, value: Any, timestamp: int, headers: Headers, request: Request | None = None
    ) -> None:
        """Add the current record."""
        origin, now_ms = self._runtime.metadata(), self._runtime.now_ms
        one = Unfinished(
            self._next, origin, key, value, timestamp, headers=headers, request=request, came_ms=now_ms
        )
        self._next += 1
        self._know(one)
        self._begin(one)
        if self._parks_by is not None and self._must_be_parked(one):
            self._park(one)
            return
        if self._closing and one.key is not None and len(self._delay_queue):
            self._take_down(one)
        self._unfinished[one.number] = one
        self._retirement.add(one.number, self._group(one))
        self._handover.add(one.number, one.key_id if self._lined_up else None)
        self._changed.add(one.number)

    def issue(self) -> list[Call]:
        """Return the calls to issue now."""
        runtime, calls = self._runtime, []
        soon = runtime.now_ms + _AHEAD_MS
        while self._delay_queue.next <= soon:
            self._again(*self._delay_queue.take())
        self._refill()
        while (number := self._handover.take(soon)) is not None:
            one = self._unfinished[number]
            try:
                function, args = self._asks(one)
                endpoint = "" if self._calls.endpoint is None else self._calls.endpoint(one.key, one.value)
            except Exception as error:
                self._settle(one, Failed(one.attempt, in_words(error), error))
                continue
            one.turn += 1
            one.epoch = runtime.epoch
            self._changed.add(number)
            ticket = Ticket(self.name, number, one.turn, runtime.epoch)
            line = one.key_id if self._lined_up else None
            due_ms = one.due_ms or 0
            calls.append(Call(ticket, function, args, line, one.attempt, one.begun_ms, endpoint, due_ms))
        return calls

    def under_way(self) -> list[Ticket]:
        """Return the tickets of the in-flight records."""
        return [
            Ticket(self.name, one.number, one.turn, one.epoch)
            for one in self._unfinished.values()
            if one.epoch is not None
        ]

    def lost(self, ticket: Ticket) -> None:
        """Take back a call that the async worker has lost: it will be issued again, as the same attempt."""
        one = self._unfinished.get(ticket.number)
        if one is not None and _has(one, ticket):
            one.epoch = None
            self._handover.give_back(one.number)
            self._changed.add(one.number)

    # Retire.

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Store the result of a call; the next step applies its effects."""
        self._answers.append((ticket, settled))

    def collect(self) -> None:
        """Treat the answers that have come, in their order."""
        self._follow_clock()
        retiring, self._retiring = self._retiring, []
        for number in retiring:
            self._retire(self._unfinished[number])
        ending, self._ending = self._ending, []
        for number in ending:
            self._handover.end(number)
        answers, self._answers = self._answers, []
        self._set_most(sum(not isinstance(settled, Returned) for _, settled in answers))
        answered: list[Unfinished] = []
        returned: list[int] = []
        for ticket, settled in answers:
            one = self._unfinished.get(ticket.number)
            if one is None or not _has(one, ticket):
                self._counts["ignored"] += 1
            elif isinstance(settled, Returned):
                one.epoch = None
                self._changed.add(one.number)
                returned.append(one.number)
            else:
                answered.append(one)
                self._settle(one, settled)
        for number in sorted(returned, reverse=True):  # each goes in front of those behind it
            self._handover.give_back(number)
        if self._lined_up and self._in_line > 1:
            self._widen(Counter([one.key_id for one in answered]))

    def _widen(self, answered: Mapping[Hashable, int]) -> None:
        """Raise the in-flight limit of the keys with many results."""
        enough = self._in_line // _TIMES_ANSWERED
        self._handover.widen(
            {line: _TIMES_ANSWERED * count for line, count in answered.items() if count > enough}
        )

    def _set_most(self, answered: int) -> None:
        self._ran_dry = answered >= self._handover.out * _NEARLY
        times = _TIMES_ALL_ANSWERED if self._ran_dry else _TIMES_ANSWERED
        faded = round(self._memory.get("most", 0) * _FADES)
        self._memory["most"] = max(self._least, min(max(times * answered, faded), _MOST_WITH_STATION))
        self._handover.most = self._memory["most"]

    def _settle(self, one: Unfinished, settled: Settled) -> None:
        number = one.number
        one.epoch = None
        self._changed.add(number)
        self._counts["settled"] += 1
        if isinstance(settled, Waits):
            self._counts["retries"] += settled.why == "retry"
            if settled.attempt - 1 in _TOLD_AFTER:
                self._runtime.notice(self._why_again(one, settled))
            one.attempt, one.begun_ms = settled.attempt, settled.begun_ms
            one.due_ms, one.why = settled.due_ms, settled.why
            if settled.why == "until":
                one.due_ms = max(settled.due_ms, self._runtime.now_ms + LEAST_MS)
            self._handover.wait(number, one.due_ms)
        else:
            if (
                isinstance(settled, Failed)
                and self._calls.on_failure == "fail"
                and not settled.to_dead_letters
            ):
                facts = {"error": settled.cause, "attempts": settled.attempts}
                stops = ProcessingError(self._why(one, settled))
                raise self._runtime.with_letter(
                    stops, "call", self.name, one.place, facts=facts, error=settled.error
                ) from settled.error
            one.settled = settled
            at_once = self._runtime.repeats_sends
            if at_once or not self._one_by_one:
                self._handover.end(number)
            else:
                self._ending.append(number)
            retiring = self._retirement.finish(number)
            if not at_once:
                self._retiring += retiring
                return
            for each in retiring:
                self._retire(self._unfinished[each])

    def _retire(self, one: Unfinished) -> None:
        runtime, settled = self._runtime, one.settled
        runtime.held = one
        try:
            if isinstance(settled, Done):
                self._apply(one, settled.value)
            elif isinstance(settled, Failed):
                self._give_up(one, settled)
            else:
                assert isinstance(settled, Skipped), settled
                runtime.drop("skipped call")
        finally:
            runtime.held = None
        self._leave(one)

    def _apply(self, one: Unfinished, value: Any) -> None:
        try:
            self._applies(one, value)
        except Exception as error:
            self._runtime.on_error("process", self.name, error)

    def _give_up(self, one: Unfinished, failed: Failed) -> None:
        runtime, where = self._runtime, self._calls.on_failure
        runtime.drop("failed call")
        runtime.notice(self._why(one, failed))
        if failed.to_dead_letters or isinstance(where, DeadLetter):
            self._counts["dead_letters"] += 1
            topic = where.text if isinstance(where, DeadLetter) else runtime.policies.dead_letter_topic
            facts = {"error": failed.cause, "attempts": failed.attempts}
            runtime.dead_letter(topic, "call", self.name, one.place, facts=facts, error=failed.error)

    def _why(self, one: Unfinished, failed: Failed) -> str:
        attempts = "1 attempt" if failed.attempts == 1 else f"{failed.attempts} attempts"
        advice = (
            "Correct the function, let retry=ms.Retry(...) try such failures again, or set on_failure='skip' or "
            "on_failure=ms.dead_letter('topic')"
        )
        at = where(one.place)
        return f"the call of {self.name} in task {self._runtime.task_id} {at} failed for good after {attempts}: {failed.cause}. {advice}"

    def _why_again(self, one: Unfinished, settled: Waits) -> str:
        at = where(one.place)
        return (
            f"the call of {self.name} in task {self._runtime.task_id} {at} has failed {settled.attempt - 1} times and is tried "
            f"again, the last time with {settled.cause}"
        )

    # What is there.

    def save(self) -> None:
        """Bring the store up to date."""
        self._memory["next"], self._memory["parks_by"] = self._next, self._parks_by
        self._memory["order"] = self._calls.order
        unfinished = self._unfinished
        for number in self._changed:
            one = unfinished.get(number)
            if one is not None and one.due_ms is not None and self._can_be_delayed(one, one.due_ms):
                self._delay(one, one.due_ms)
        if self._changed:
            self._memory["now_ms"] = self._runtime.now_ms
        self._rows.write(sorted(self._changed), unfinished)
        self._changed.clear()
        self._delay_queue.save()
        self._overflow.save()

    def next_due(self) -> int | None:
        """Return when a record is to be handed over or retires next, ms since the epoch and not before now; None if never."""
        if self._retiring:
            return self._runtime.now_ms
        due, delayed_ms = self._handover.next_due(), self._delay_queue.next
        first = earliest(due, None if delayed_ms == NEVER else delayed_ms)
        return None if first is None else max(first - _AHEAD_MS, self._runtime.now_ms)

    def figures(self) -> CallFigures:
        """Return the metrics and reset the counters."""
        handover = self._handover
        delayed = sum(self._unfinished[number].why != "retry" for number in handover.waiting_numbers())
        figures = CallFigures(
            with_station=handover.out - len(self._ending),
            waiting=handover.waiting + len(self._delay_queue),
            delayed=delayed + self._delay_queue.delayed,
            parked=handover.parked + len(self._overflow),
            held=self._retirement.held + len(self._retiring),
            room=self._room(),
            most_per_key=handover.longest_line + (self._overflow.longest if self._parks_by == "key" else 0),
            oldest_ms=self._oldest_ms(),
            hottest=self._hottest() if self._closing else None,
            **self._counts,
        )
        self._counts = dict.fromkeys(self._counts, 0)
        return figures

    def _hottest(self) -> tuple[str, int, int] | None:
        first, parked = self._came_until, self._parked
        self._came_until, self._parked = self._next, {}
        sample = range(first, self._next, (self._next - first) // _SAMPLE + 1)
        keys = Counter(
            parked[number] if number in parked else self._unfinished[number].key_id
            for number in sample
            if number in parked or number in self._unfinished
        )
        known = [(key, count) for key, count in keys.most_common(2) if key is not None]
        return (_in_words(known[0][0]), known[0][1], keys.total()) if known else None

    def _oldest_ms(self) -> int | None:
        unfinished, again = self._unfinished, self._came_again
        while again and again[0] not in unfinished:
            heappop(again)
        at_hand = [
            next(iter(unfinished), None),
            again[0] if again else None,
        ]  # the others came in their order
        came = [unfinished[number].came_ms for number in at_hand if number is not None]
        return earliest(*came, self._delay_queue.oldest, self._overflow.oldest)

    def _room(self) -> int:
        """Return how many more records can be taken in: about what can be handed over in the next step.

        Those of hot keys lie aside, as long as they are not too many.
        """
        handover, aside = self._handover, len(self._overflow)
        left = 0 if self._ran_dry else handover.out // 2
        room = handover.most - left - (handover.parked - handover.behind_waiting)
        if self._parks_by == "partition":
            return max(room - aside, 0)
        return max(room, 0) if aside < _IN_OVERFLOW else 0

    def _resume(self) -> None:
        """Load what the last micro-batch left unfinished."""
        for partition, offset, times in chain(self._delay_queue.offsets(), self._overflow.offsets()):
            self._frontier(partition).begin(offset, times)
        ones = self._rows.read()
        offsets: dict[TopicPartition, list[int]] = {}
        for one in ones:
            if one.partition is not None and one.origin is not None:
                offsets.setdefault(one.partition, []).append(one.origin.offset)
        for partition, begun in offsets.items():
            self._frontier(partition).begin_all(begun)
        for one in sorted([*ones, *self._emptied_stores()], key=attrgetter("number")):
            self._enter_again(one)

    def _emptied_stores(self) -> Iterator[Unfinished]:
        """Load the records that lie where an edited order would not find them."""
        rows = []
        order = self._calls.order
        if not self._delays or self._memory.get("order", order) != order:
            while self._delay_queue.next != NEVER:
                rows.append(self._delay_queue.take())
        if self._memory.get("parks_by", self._parks_by) != self._parks_by:
            for group in self._overflow.groups:
                rows += self._overflow.take(group, len(self._overflow))
        for number, row in rows:
            self._changed.add(number)
            yield Unfinished.from_row(number, row)

    def _first_free(self) -> int:
        """Return an unused record number, for stores that come without the operator's memory."""
        here = max(self._unfinished, default=-1)
        return 1 + max(here, self._delay_queue.last_number(), self._overflow.last_number())

    def _enter_again(self, one: Unfinished) -> None:
        self._know(one)
        self._unfinished[one.number] = one
        self._retirement.add(one.number, self._group(one))
        if one.settled is not None:
            self._retiring += self._retirement.finish(one.number)
            return
        line, out = one.key_id if self._lined_up else None, one.epoch is not None
        self._handover.resume(one.number, line, due_ms=None if out else one.due_ms, out=out)

    def _follow_clock(self) -> None:
        """After the clock went back, make retries and delays due no later; only ``until`` keeps its time."""
        back_ms = self._memory.get("now_ms", self._runtime.now_ms) - self._runtime.now_ms
        if back_ms < _STEP_MS:
            return
        while self._delay_queue.next != NEVER:
            self._again(*self._delay_queue.take())
        for number in list(self._handover.waiting_numbers()):
            one = self._unfinished[number]
            if one.due_ms is not None and one.why != "until":
                one.due_ms -= back_ms
                one.begun_ms = None if one.begun_ms is None else one.begun_ms - back_ms
                self._handover.bring_forward(number, one.due_ms)
            self._changed.add(number)

    def _take_down(self, one: Unfinished) -> None:
        """Take the record from the delay queue that this one must not overtake."""
        found = self._delay_queue.take_key(_bytes_of(one.key_id))
        if found is not None:
            self._again(*found)

    def _again(self, number: int, row: tuple[Any, ...]) -> None:
        self._enter_again(Unfinished.from_row(number, row))
        self._changed.add(number)
        heappush(self._came_again, number)

    def _must_be_parked(self, one: Unfinished) -> bool:
        """Return whether a record has so many of its key or partition in front that it moves to the overflow."""
        behind = self._parks_behind(one)
        if behind is None:
            return False
        count = self._count_at_hand(behind)
        if count >= _CLOSED_LINE and count >= self._at_hand(behind):
            return True
        return len(self._overflow) > 0 and _bytes_of(behind) in self._overflow

    def _parks_behind(self, one: Unfinished) -> Hashable:
        """Return the key or partition by which a record is parked; None if it never is."""
        if self._parks_by == "key":
            return one.key_id
        return one.partition if self._parks_by == "partition" else None

    def _at_hand(self, group: Hashable) -> int:
        """Return how many records of a key or partition stay in memory before others are parked."""
        if self._parks_by != "key":
            return self._handover.most
        if self._handover.is_closed(group):
            return _CLOSED_LINE
        return max(_LONG_LINE, 2 * self._handover.widened(group))

    def _count_at_hand(self, group: Hashable) -> int:
        if self._parks_by == "key":
            return self._handover.in_line(group)
        return self._retirement.size(group)

    def _park(self, one: Unfinished) -> None:
        self._overflow.put(_bytes_of(self._parks_behind(one)), one.number, one.label, one.row())
        if self._closing:
            self._parked[one.number] = one.key_id

    def _refill(self) -> None:
        """Load parked records of the keys or partitions whose first records have retired."""
        for packed in self._overflow.groups:
            group = pickle.loads(packed)
            here, most = self._count_at_hand(group), self._at_hand(group)
            if here <= most // 2:
                for number, row in self._overflow.take(packed, most - here):
                    self._again(number, row)

    def _can_be_delayed(self, one: Unfinished, due_ms: int) -> bool:
        if not self._delays or due_ms <= self._runtime.now_ms:
            return False
        if len(self._overflow) and _bytes_of(one.key_id) in self._overflow:
            return False
        return self._handover.waits_alone(one.number) and self._retirement.is_alone(one.number)

    def _delay(self, one: Unfinished, due_ms: int) -> None:
        found_by = _bytes_of(one.key_id) if self._closing and one.key is not None else None
        self._delay_queue.put(one.number, due_ms, found_by, one.label, one.row())
        del self._unfinished[one.number]
        self._handover.leave(one.number)
        self._retirement.leave(one.number)

    def _know(self, one: Unfinished) -> None:
        """Set what identifies the record's key: in the ledger, the async worker, and the stores."""
        one.serdes = self._serdes
        one.key_id = key = one.key
        if type(key) not in _AS_THEY_ARE:
            try:
                one.key_id = _Pickled.of(key)
            except Exception:  # it could not be kept either: the error says so when it is to be
                one.key_id = in_bytes(self._serdes[0], key)

    def _begin(self, one: Unfinished) -> None:
        if one.partition is not None and one.origin is not None:
            self._frontier(one.partition).begin(one.origin.offset)

    def _leave(self, one: Unfinished) -> None:
        del self._unfinished[one.number]
        self._changed.add(one.number)
        if one.partition is not None and one.origin is not None:
            self._runtime.frontiers[one.partition].end(one.origin.offset)

    def _frontier(self, partition: TopicPartition) -> Frontier:
        frontier = self._runtime.frontiers.get(partition)
        if frontier is None:
            frontier = self._runtime.frontiers[partition] = Frontier()
        return frontier

    def _group(self, one: Unfinished) -> Hashable:
        if self._closing:
            return one.key_id
        return None if self._delays else one.partition


class _Pickled(bytes):
    """What tells a key from others that is not as it is: equal keys give equal bytes, also where parts of one are the same object."""

    @classmethod
    def of(cls, key: object) -> _Pickled:
        out = BytesIO()
        pickler = pickle.Pickler(out, protocol=5)
        pickler.fast = True  # writes each part in full, in place of a reference to the first of two
        pickler.dump(key)
        return cls(out.getvalue())


def _in_words(key_id: Hashable) -> str:
    return reprlib.repr(pickle.loads(key_id) if isinstance(key_id, _Pickled) else key_id)


def _has(one: Unfinished, ticket: Ticket) -> bool:
    return one.epoch == ticket.epoch and one.turn == ticket.turn


def _bytes_of(group: Hashable) -> bytes:
    return pickle.dumps(group, protocol=5)
