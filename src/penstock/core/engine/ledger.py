"""Ledger: the unfinished records of one asynchronous operator, from when they come to when their effects are applied.

A record goes through three stages (KIP-311): it is *issued*: handed to the station, which calls the function of the user for
it; it is *executed* there, across any number of micro-batches; it *retires*: its effects are applied by the task, all of
them in one step and in the order the operator promises, and only then does its offset count as processed.

Between two steps the ledger lies in a store of the task, so what is unfinished is committed together with everything else the
micro-batch did: inputs, numbers of attempts, due times, results that wait for their turn. A record that begins and ends within
a step leaves no trace there. After a restart the ledger goes on where it was. What the station still has is not handed over
again; what it has lost is (:meth:`Ledger.lost`), as the same attempt.

Of a record that was handed over, the *ticket* of the last time counts. Answers to other tickets are ignored.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.core.asynchronous.call import Call, Done, Failed, Returned, Settled, Ticket, Waits
from penstock.core.asynchronous.frontier import Frontier
from penstock.core.asynchronous.handover import Handover
from penstock.core.asynchronous.retirement import Retirement
from penstock.core.engine.runtime import NEVER, Runtime
from penstock.core.model.calls import Calls, DeadLetter
from penstock.core.model.durations import earliest
from penstock.core.model.errors import ProcessingError
from penstock.core.model.ids import TopicPartition
from penstock.core.model.record import Headers, RecordMetadata
from penstock.core.model.serdes import Serde
from penstock.core.plan.asynchronous import Carried

if TYPE_CHECKING:
    from penstock.core.engine.operators.overflow import Overflow
    from penstock.core.engine.operators.shelf import Shelf

_WITH_STATION: Final = 10_000
"""How many records of an operator a task hands over at least: a station must not run dry between two micro-batches."""
_TIMES_IN_FLIGHT: Final = 20
_IN_LINE: Final = 128
"""How many records of one key are handed over at order ``key``: they follow each other without a micro-batch in between."""
_LONG_LINE: Final = 512
"""How many unfinished records of one key a ledger has at hand."""


class Request(NamedTuple):
    """What a processor has issued for a record.

    Attributes:
        function: What is called.
        args: With what.
        then: The method of the processor that gets the result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    then: str


class Unfinished:
    """A record that has come and not retired. Owned by a ledger."""

    __slots__ = (
        "attempt",
        "begun_ms",
        "came_ms",
        "due_ms",
        "headers",
        "key",
        "key_id",
        "number",
        "origin",
        "partition",
        "request",
        "serdes",
        "settled",
        "ticket",
        "timestamp",
        "turn",
        "value",
    )

    def __init__(
        self,
        number: int,
        origin: RecordMetadata | None,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
        request: Request | None,
        came_ms: int,
    ) -> None:
        self.number = number
        self.origin = origin
        self.partition = None if origin is None else TopicPartition(origin.topic, origin.partition)
        self.key = key
        self.key_id: Hashable = None
        self.value = value
        self.timestamp = timestamp
        self.headers = headers
        self.request = request
        self.came_ms = came_ms
        self.attempt = 1
        self.begun_ms: int | None = None
        self.due_ms: int | None = None
        self.ticket: Ticket | None = None
        self.turn = 0
        self.settled: Settled | None = None
        self.serdes: tuple[Serde[Any], Serde[Any]] | None = None

    @property
    def place(self) -> tuple[Any, ...]:
        """What is told of the record if it fails: partition, offset, and itself, serialised."""
        assert self.serdes is not None
        key, value = _told(self.serdes[0], self.key), _told(self.serdes[1], self.value)
        offset = -1 if self.origin is None else self.origin.offset
        return self.partition, offset, key, value, self.timestamp, self.headers

    def row(self) -> tuple[Any, ...]:
        """Give it as what is stored."""
        return (
            self.origin and tuple(self.origin),
            (self.key, self.value, self.timestamp, self.headers),
            self.request and tuple(self.request),
            (self.came_ms, self.attempt, self.begun_ms, self.due_ms, self.turn),
            self.ticket and tuple(self.ticket),
            _without_error(self.settled),
        )

    @classmethod
    def from_row(cls, number: int, row: tuple[Any, ...]) -> Unfinished:
        """Read what :meth:`row` gave."""
        origin, record, request, (came, attempt, begun, due, turn), ticket, settled = row
        key, value, timestamp, headers = record
        asked = request and Request(*request)
        one = cls(number, origin and RecordMetadata(*origin), key, value, timestamp, headers, asked, came)
        one.attempt, one.begun_ms, one.due_ms, one.turn = attempt, begun, due, turn
        one.ticket, one.settled = ticket and Ticket(*ticket), settled
        return one


class UnfinishedRows:
    """Unfinished records in their store, by number. Owned by what keeps them.

    Args:
        store: The store.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._there: set[int] = set()

    def read(self) -> list[Unfinished]:
        """Give all that are there, by number."""
        ones = [Unfinished.from_row(number, row) for number, row in self._store.all()]
        self._there.update(one.number for one in ones)
        return ones

    def last_number(self) -> int:
        """Give the largest number of one that is there, -1 if there is none."""
        return max((number for number, _ in self._store.all()), default=-1)

    def write(self, number: int, one: Unfinished | None) -> None:
        """Write a record, or delete it if it is finished; what comes and goes between two writes leaves no trace."""
        if one is not None:
            self._store.put(number, one.row())
            self._there.add(number)
        elif number in self._there:
            self._store.put(number, None)
            self._there.remove(number)


@dataclass(frozen=True)
class CallFigures:
    """What there is to see of an asynchronous operator in a task (docs/reference/metrics.md).

    Attributes:
        with_station: Records handed to the station.
        waiting: Records that wait for a retry or a delay.
        parked: Records that could be called and have not been handed over.
        held: Records whose calls have ended, and that wait for those in front of them.
        most_per_key: Unfinished records of the key that has most.
        oldest_ms: When the oldest unfinished record came, ms since the epoch; None if there is none.
        settled: Attempts that ended in this step.
        retries: Attempts that will be followed by another, in this step.
        dead_letters: Records that went to a dead-letter topic, in this step.
        ignored: Answers to tickets that nobody held any more, in this step.
    """

    with_station: int
    waiting: int
    parked: int
    held: int
    most_per_key: int
    oldest_ms: int | None
    settled: int
    retries: int
    dead_letters: int
    ignored: int


class Book(Protocol):
    """What keeps the unfinished records of an operator, as its task sees it."""

    name: str

    @property
    def calls(self) -> Calls | None:
        """How the operator calls; None if it calls by itself."""

    def collect(self) -> None:
        """Begin a step: treat what has come since the last one."""

    def issue(self) -> Iterable[Call]:
        """Give the calls to hand to the station now."""

    def save(self) -> None:
        """End a step: bring the store up to date."""

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Take note of an answer."""

    def under_way(self) -> Iterable[Ticket]:
        """Give the tickets of the records that are with the station."""

    def lost(self, ticket: Ticket) -> None:
        """Take a record back that the station does not have."""

    def next_due(self) -> int | None:
        """Give when a record is to be handed over next, ms since the epoch; None if never."""

    def figures(self) -> CallFigures:
        """Give what there is to see, and begin to count anew."""


class Ledger:
    """The unfinished records of one operator. Owned by the task.

    Args:
        name: The operator's node.
        calls: How it calls.
        carried: What keeps unfinished records.
        runtime: The task.
        asks: Gives the function to call for a record, and its arguments.
        applies: Applies the effects of a result.
        shelf: Where records lie that wait for a time; those of order ``partition`` hold others up and stay here.
        overflow: Where records of hot keys lie; those of order ``partition`` hold others up and stay here.
        serial: How many records of a key may be with the station at order ``key``.
    """

    def __init__(
        self,
        name: str,
        calls: Calls,
        carried: Carried,
        runtime: Runtime,
        asks: Callable[[Unfinished], tuple[Callable[..., Any], tuple[Any, ...]]],
        applies: Callable[[Unfinished, Any], None],
        shelf: Shelf,
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
        self._shelving = calls.order != "partition"
        self._lined_up = calls.per_key(serial) is not None
        most = max(_WITH_STATION, _TIMES_IN_FLIGHT * calls.max_in_flight)
        self._handover = Handover(most, calls.per_key(serial), closing=self._closing)
        self._retirement = Retirement()
        self._unfinished: dict[int, Unfinished] = {}
        self._changed: set[int] = set()
        self._answers: list[tuple[Ticket, Settled]] = []
        self._retiring: list[int] = []
        """What retires at the beginning of the next step: what an answer must be committed for first, and after a restart what no
        longer has to wait because the order was edited."""
        self._counts = dict.fromkeys(("settled", "retries", "dead_letters", "ignored"), 0)
        self._memory = runtime.memory(carried.store.name)
        self._shelf = shelf
        self._overflow = overflow
        self._next: int = self._memory["next"] if "next" in self._memory else self._first_free()
        self._resume()
        runtime.books.append(self)

    # Issue.

    def take(
        self, key: Any, value: Any, timestamp: int, headers: Headers, request: Request | None = None
    ) -> None:
        """Take in the current record."""
        runtime = self._runtime
        one = Unfinished(
            self._next, runtime.metadata(), key, value, timestamp, headers, request, runtime.now_ms
        )
        self._next += 1
        self._know(one)
        self._begin(one)
        if self._must_be_parked(one):
            self._park(one)
            return
        self._take_down(one)
        self._enter(one)
        self._handover.add(one.number, self._line(one))
        self._changed.add(one.number)

    def issue(self) -> list[Call]:
        """Give the calls to hand to the station now."""
        runtime, calls = self._runtime, []
        while self._shelf.next <= runtime.now_ms:
            self._again(*self._shelf.take())
        self._refill()
        while (number := self._handover.take(runtime.now_ms)) is not None:
            one = self._unfinished[number]
            try:
                function, args = self._asks(one)
                endpoint = "" if self._calls.endpoint is None else self._calls.endpoint(one.key, one.value)
            except Exception as error:
                self._settle(one, Failed(one.attempt, f"{type(error).__name__}: {error}", error))
                continue
            one.turn += 1
            one.due_ms = None
            one.ticket = Ticket(self.name, number, one.turn, runtime.epoch)
            self._changed.add(number)
            calls.append(
                Call(one.ticket, function, args, self._line(one), one.attempt, one.begun_ms, endpoint)
            )
        return calls

    def under_way(self) -> list[Ticket]:
        """Give the tickets of the records that are with the station."""
        return [one.ticket for one in self._unfinished.values() if one.ticket is not None]

    def lost(self, ticket: Ticket) -> None:
        """Take a record back that the station does not have: it will be handed over again, as the same attempt."""
        one = self._unfinished.get(ticket.number)
        if one is not None and one.ticket == ticket:
            one.ticket = None
            self._handover.give_back(one.number)
            self._changed.add(one.number)

    # Retire.

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Take note of an answer; its effects are applied in the next step."""
        self._answers.append((ticket, settled))

    def collect(self) -> None:
        """Treat the answers that have come, in their order."""
        retiring, self._retiring = self._retiring, []
        for number in retiring:
            self._retire(self._unfinished[number])
        answers, self._answers = self._answers, []
        for ticket, settled in answers:
            one = self._unfinished.get(ticket.number)
            if one is None or one.ticket != ticket:
                self._counts["ignored"] += 1
                continue
            self._settle(one, settled)

    def _settle(self, one: Unfinished, settled: Settled) -> None:
        number = one.number
        one.ticket = None
        self._changed.add(number)
        self._counts["settled"] += not isinstance(settled, Returned)
        if isinstance(settled, Returned):
            self._handover.give_back(number)
        elif isinstance(settled, Waits):
            self._counts["retries"] += settled.why == "retry"
            one.attempt, one.begun_ms, one.due_ms = settled.attempt, settled.begun_ms, settled.due_ms
            self._handover.wait(number, settled.due_ms)
        else:
            if (
                isinstance(settled, Failed)
                and self._calls.on_failure == "fail"
                and not settled.to_dead_letters
            ):
                raise ProcessingError(self._why(one, settled)) from settled.error
            one.settled = settled
            self._handover.end(number)
            retiring = self._retirement.finish(number)
            if not self._runtime.repeats_sends:
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
            runtime.dead_letter(topic, "call", self.name, one.place, facts, failed.error)

    def _why(self, one: Unfinished, failed: Failed) -> str:
        attempts = "1 attempt" if failed.attempts == 1 else f"{failed.attempts} attempts"
        advice = (
            "Correct the function, let retry=ps.Retry(...) try such failures again, or set on_failure='skip' or "
            "on_failure=ps.dead_letter('topic')"
        )
        where = self._runtime.where(one.place)
        return f"the call of {self.name} in task {self._runtime.task_id} {where} failed for good after {attempts}: {failed.cause}. {advice}"

    # What is there.

    def save(self) -> None:
        """Bring the store up to date."""
        self._memory["next"] = self._next
        for number in self._changed:
            one = self._unfinished.get(number)
            if one is not None and self._can_be_shelved(one):
                self._put_on_shelf(one)
                one = None
            self._rows.write(number, one)
        self._changed.clear()
        self._shelf.save()
        self._overflow.save()

    def next_due(self) -> int | None:
        """Give when a record is to be handed over or retires next, ms since the epoch; None if never."""
        if self._retiring:
            return self._runtime.now_ms
        due, shelved = self._handover.next_due(), self._shelf.next
        return earliest(due, None if shelved == NEVER else shelved)

    def figures(self) -> CallFigures:
        """Give what there is to see, and begin to count anew."""
        handover = self._handover
        oldest = next(iter(self._unfinished.values()), None)
        figures = CallFigures(
            handover.out,
            handover.waiting + len(self._shelf),
            handover.parked + len(self._overflow),
            self._retirement.held,
            handover.longest_line + self._overflow.longest,
            None if oldest is None else oldest.came_ms,
            **self._counts,
        )
        self._counts = dict.fromkeys(self._counts, 0)
        return figures

    def _resume(self) -> None:
        """Go on with what the last micro-batch left unfinished."""
        for partition, offset, times in chain(self._shelf.offsets(), self._overflow.offsets()):
            self._frontier(partition).begin(offset, times)
        ones = self._rows.read()
        for one in ones:
            self._begin(one)
        if not self._shelving:
            ones = sorted([*ones, *self._emptied_stores()], key=attrgetter("number"))
        for one in ones:
            self._enter_again(one)

    def _emptied_stores(self) -> Iterator[Unfinished]:
        """Take everything down after the order was edited to one in which what waits holds all others up."""
        rows = []
        while self._shelf.next != NEVER:
            rows.append(self._shelf.take())
        for key in self._overflow.keys:
            rows += self._overflow.take(key, len(self._overflow))
        for number, row in rows:
            self._changed.add(number)
            yield Unfinished.from_row(number, row)

    def _first_free(self) -> int:
        """Give a number that no record has, where the stores come without what was remembered beside them."""
        return 1 + max(self._rows.last_number(), self._shelf.last_number(), self._overflow.last_number())

    def _enter_again(self, one: Unfinished) -> None:
        self._know(one)
        if one.ticket is not None and one.ticket.operator != self.name:
            one.ticket = None  # whoever answers does so by the operator's name
            self._changed.add(one.number)
        self._enter(one)
        if one.settled is not None:
            self._retiring += self._retirement.finish(one.number)
            return
        out = one.ticket is not None
        self._handover.resume(one.number, self._line(one), due_ms=one.due_ms, out=out)

    def _take_down(self, one: Unfinished) -> None:
        """Take from the shelf what a record must not overtake."""
        if self._closing and one.key is not None and len(self._shelf):
            found = self._shelf.take_key(_key_bytes(one))
            if found is not None:
                self._again(*found)

    def _again(self, number: int, row: tuple[Any, ...]) -> None:
        self._enter_again(Unfinished.from_row(number, row))
        self._changed.add(number)

    def _must_be_parked(self, one: Unfinished) -> bool:
        """Tell whether a record comes behind so many of its key that it is not needed at hand."""
        if not self._lined_up or not self._shelving or one.key is None:
            return False
        if self._handover.in_line(one.key_id) >= _LONG_LINE:
            return True
        return len(self._overflow) > 0 and _key_bytes(one) in self._overflow

    def _park(self, one: Unfinished) -> None:
        origin = one.origin
        place = None if origin is None else (origin.topic, origin.partition, origin.offset)
        self._overflow.put(_key_bytes(one), one.number, place, one.row())

    def _refill(self) -> None:
        """Take parked records to hand where the first ones of their key have gone."""
        for key in self._overflow.keys:
            here = self._handover.in_line(pickle.loads(key))
            if here <= _LONG_LINE // 2:
                for number, row in self._overflow.take(key, _LONG_LINE - here):
                    self._again(number, row)

    def _can_be_shelved(self, one: Unfinished) -> bool:
        if not self._shelving or one.due_ms is None or one.due_ms <= self._runtime.now_ms:
            return False
        if len(self._overflow) and _key_bytes(one) in self._overflow:
            return False
        return self._handover.waits_alone(one.number) and self._retirement.is_alone(one.number)

    def _put_on_shelf(self, one: Unfinished) -> None:
        assert one.due_ms is not None
        found_by = _key_bytes(one) if self._closing and one.key is not None else None
        self._shelf.put(one.number, one.due_ms, found_by, one.origin, one.row())
        del self._unfinished[one.number]
        self._handover.leave(one.number)
        self._retirement.leave(one.number)

    def _know(self, one: Unfinished) -> None:
        """Find out what tells the record's key from others, as a dict does."""
        one.serdes = self._serdes
        try:
            hash(one.key)
            one.key_id = one.key
        except TypeError:
            one.key_id = _told(self._serdes[0], one.key)

    def _enter(self, one: Unfinished) -> None:
        self._unfinished[one.number] = one
        self._retirement.add(one.number, self._group(one))

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

    def _line(self, one: Unfinished) -> Hashable:
        return one.key_id if self._lined_up else None

    def _group(self, one: Unfinished) -> Hashable:
        if self._calls.order == "key":
            return one.key_id
        return one.partition if self._calls.order == "partition" else None


def _key_bytes(one: Unfinished) -> bytes:
    return pickle.dumps(one.key_id, protocol=5)


def _told(serde: Serde[Any], part: Any) -> bytes | None:
    """Give a key or value as bytes for people and dead letters, also if it does not fit its serde."""
    if part is None or isinstance(part, bytes):
        return part
    try:
        return serde.serialize(part)
    except Exception:
        return repr(part).encode()


def _without_error(settled: Settled | None) -> Settled | None:
    """Give it as what can be stored: an exception need not be."""
    return replace(settled, error=None) if isinstance(settled, Failed) else settled


def first_due(books: Iterable[Book]) -> int | None:
    """Give when a record of any ledger is to be handed over next; None if never."""
    return earliest(*(book.next_due() for book in books))
