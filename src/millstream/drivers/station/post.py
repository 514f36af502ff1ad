"""Post: what a station does for one task.

It keeps the calls of the task between its micro-batches: per operator a dispatcher, which says which of them run, behind an exchange,
which keeps what has been settled until the task has committed it. It has no clock and no thread: the station brings the time and
runs what is to be run, so everything that is decided can be tested with values.

The task lives by the application's clock, which somebody may set or move; calls live by the station's, which nobody moves. Times cross
between the two as far from now as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from millstream.core.asynchronous.call import Call, Held, Settled, Ticket, Waits, tickets
from millstream.core.asynchronous.dispatcher import Dispatcher, Start
from millstream.core.asynchronous.exchange import Exchange
from millstream.core.asynchronous.station import Answered, Work
from millstream.core.model.durations import earliest
from millstream.core.model.errors import StationError
from millstream.drivers.station.messages import Question

_LATELY = 50
_STEP_MS = 1_000
"""Clocks that differ by less are the same: between asking and hearing some time passes, too."""


class _Desk(NamedTuple):
    """What is kept for one operator: the digest of its options, since when each of its calls has been running, and how long they take."""

    options: bytes
    dispatcher: Dispatcher
    exchange: Exchange
    began: dict[int, int]
    pace: _Pace


class _Pace:
    """How long calls took lately, on average."""

    def __init__(self) -> None:
        self.call_ms = 0.0
        self._ended = 0

    def note(self, took_ms: int) -> None:
        """Take in a call; one of the last fifty, about, has a fiftieth of the say."""
        self._ended = min(self._ended + 1, _LATELY)
        self.call_ms += (took_ms - self.call_ms) / self._ended


class Post:
    """The calls of one task. Owned by the station.

    Args:
        task: The task.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._batch = -1
        self._desks: dict[str, _Desk] = {}
        self._numbers = count(1)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to fetch."""
        return all(desk.exchange.idle for desk in self._desks.values())

    def ask(self, question: Question, loaded: Mapping[bytes, Any], now_ms: int) -> Answered:
        """Take in what a task says.

        Args:
            question: What it says.
            loaded: Functions and options by digest, all of the question among them.
            now_ms: The time by the station's clock, ms since the epoch.

        Returns:
            What has come of its calls.

        Raises:
            StationError: If the question is of a micro-batch that is over: an attempt at it that was thought lost may still be at
                work somewhere.
        """
        if question.batch < self._batch:
            raise StationError(
                f"task {self._task} is in micro-batch {self._batch} already; this attempt at {question.batch} is too late"
            )
        self._batch = question.batch
        ahead_ms = question.now_ms - now_ms
        if abs(ahead_ms) < _STEP_MS:
            ahead_ms = 0
        for operator, digest in question.options.items():
            self._set_options(operator, digest, loaded)
        lost = None if question.held is None else self._begin(question.held)
        for operator, orders in question.orders.items():
            exchange = self._desks[operator].exchange
            for number, turn, epoch, function, *rest in zip(*orders):
                ticket = Ticket(operator, number, turn, epoch)
                if lost:
                    lost.discard(ticket)
                if not exchange.knows(ticket):
                    exchange.offer(_by_our_clock(Call(ticket, loaded[function], *rest), ahead_ms), now_ms)
        return Answered(
            () if lost is None else tuple(self._settled(ahead_ms)),
            tuple(sorted(lost or ())),
            {name: self._seen(desk, now_ms) for name, desk in self._desks.items()},
        )

    def start(self, now_ms: int) -> Iterator[tuple[str, Start]]:
        """Return what begins now, with its operator."""
        for name, desk in self._desks.items():
            for start in desk.dispatcher.start(now_ms):
                desk.began[start.number] = now_ms
                yield name, start

    def end(self, operator: str, number: int, answers: Sequence[Any], now_ms: int) -> None:
        """Take in the answers to what was begun."""
        desk = self._desks[operator]
        began = desk.began.pop(number, None)
        if began is not None:
            desk.pace.note(now_ms - began)
        desk.dispatcher.end(number, answers, now_ms)

    def expire(self, now_ms: int) -> list[tuple[str, int]]:
        """Give up what takes too long; give its operators and numbers."""
        expired = [
            (name, number) for name, desk in self._desks.items() for number in desk.dispatcher.expire(now_ms)
        ]
        for name, number in expired:
            self._desks[name].began.pop(number, None)
        return expired

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Return when something begins or is given up without an answer; None if never."""
        return earliest(*(desk.dispatcher.wake_at_ms(now_ms) for desk in self._desks.values()))

    def _begin(self, held: Mapping[str, Held]) -> set[Ticket]:
        """Begin with what the task holds; give what is lost of it."""
        unknown = (tickets(name, numbers) for name, numbers in held.items() if name not in self._desks)
        lost = (desk.exchange.begin(name, held.get(name, {})) for name, desk in self._desks.items())
        return set().union(*unknown, *lost)

    def _settled(self, ahead_ms: int) -> Iterator[tuple[Ticket, Settled]]:
        for desk in self._desks.values():
            for ticket, settled in desk.exchange.answers():
                yield ticket, _by_the_clock_of_the_task(settled, ahead_ms)

    def _set_options(self, operator: str, digest: bytes, loaded: Mapping[bytes, Any]) -> None:
        """Make the dispatcher of an operator, anew if its options have changed: what it had is lost to the task then."""
        if operator in self._desks and self._desks[operator].options == digest:
            return
        dispatcher = Dispatcher(loaded[digest], f"{self._task}:{operator}", self._numbers)
        self._desks[operator] = _Desk(digest, dispatcher, Exchange(dispatcher), {}, _Pace())

    def _seen(self, desk: _Desk, now_ms: int) -> Work:
        ages = [now_ms - began for began in desk.began.values()] or [0]
        dispatcher = desk.dispatcher
        queued, early_ms = dispatcher.queued(now_ms), dispatcher.early_ms(now_ms)
        wake_at_ms = now_ms if desk.exchange.has_news else dispatcher.wake_at_ms(now_ms)
        next_ms = None if wake_at_ms is None else max(wake_at_ms - now_ms, 0)
        return Work(len(desk.began), queued, max(ages), min(ages), desk.pace.call_ms, early_ms, next_ms)


def _by_our_clock(call: Call, ahead_ms: int) -> Call:
    if not ahead_ms:
        return call
    begun_ms = None if call.begun_ms is None else call.begun_ms - ahead_ms
    return call._replace(due_ms=call.due_ms and call.due_ms - ahead_ms, begun_ms=begun_ms)


def _by_the_clock_of_the_task(settled: Settled, ahead_ms: int) -> Settled:
    return settled.moved(ahead_ms) if ahead_ms and isinstance(settled, Waits) else settled
