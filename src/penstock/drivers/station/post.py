"""Post: what a station does for one task.

It keeps the calls of the task between its micro-batches: one dispatcher per operator says which of them run, and what has been
settled waits here until the task no longer holds the ticket. It has no clock and no thread: the station brings the time and runs what
is to be run, so everything that is decided can be tested with values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.core.asynchronous.call import Call, Settled, Ticket
from penstock.core.asynchronous.dispatcher import Dispatcher, Start
from penstock.core.asynchronous.station import Answered, Work
from penstock.drivers.station.messages import Answer, Question


class Post:
    """The calls of one task. Owned by the station.

    Args:
        task: The task.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._batch = -1
        self._dispatchers: dict[str, Dispatcher] = {}
        self._options: dict[str, bytes] = {}
        self._open: set[Ticket] = set()
        self._settled: dict[Ticket, Settled] = {}
        self._running: dict[tuple[str, int], int] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to fetch."""
        return not (self._open or self._settled or self._running)

    def ask(self, question: Question, loaded: Mapping[bytes, Any], now_ms: int) -> Answer:
        """Take in what a task says.

        Args:
            question: What it says.
            loaded: Functions and options by digest, all of the question among them.
            now_ms: The time, ms since the epoch.

        Returns:
            What has come of its calls. A question of a micro-batch that is over is refused: an attempt at it that was thought
            lost may still be at work somewhere.
        """
        if question.batch < self._batch:
            return Answer(
                refused=f"task {self._task} is in micro-batch {self._batch} already; this attempt at {question.batch} is too late"
            )
        self._batch = question.batch
        self._forget(question.held)
        for operator, digest in question.options.items():
            self._set_options(operator, digest, loaded)
        for order in question.orders:
            if order.ticket not in self._open and order.ticket not in self._settled:
                self._open.add(order.ticket)
                call = Call(order.ticket, loaded[order.function], *order[2:])
                self._dispatchers[order.ticket.operator].offer(call, now_ms)
        self._collect()
        known = self._open | self._settled.keys()
        return Answer(
            Answered(
                tuple(self._settled.items()),
                tuple(sorted(question.held - known)),
                {name: self._seen(name, now_ms) for name in self._dispatchers},
            )
        )

    def start(self, now_ms: int) -> Iterator[tuple[str, Start]]:
        """Give what begins now, with its operator."""
        for name, dispatcher in self._dispatchers.items():
            for start in dispatcher.start(now_ms):
                self._running[name, start.number] = now_ms
                yield name, start
        self._collect()

    def end(self, operator: str, number: int, answers: Sequence[Any], now_ms: int) -> None:
        """Take in the answers to what was begun."""
        self._running.pop((operator, number), None)
        self._dispatchers[operator].end(number, answers, now_ms)
        self._collect()

    def expire(self, now_ms: int) -> list[tuple[str, int]]:
        """Give up what takes too long; give its operators and numbers."""
        expired = [
            (name, n) for name, dispatcher in self._dispatchers.items() for n in dispatcher.expire(now_ms)
        ]
        for one in expired:
            self._running.pop(one, None)
        self._collect()
        return expired

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Give when something begins or is given up without an answer; None if never."""
        times = [dispatcher.wake_at_ms(now_ms) for dispatcher in self._dispatchers.values()]
        return min((at for at in times if at is not None), default=None)

    def _forget(self, held: frozenset[Ticket]) -> None:
        """Forget what the task no longer holds."""
        self._settled = {ticket: settled for ticket, settled in self._settled.items() if ticket in held}
        orphans = self._open - held
        if orphans:
            for dispatcher in self._dispatchers.values():
                dispatcher.forget(orphans)
            self._open -= orphans

    def _set_options(self, operator: str, digest: bytes, loaded: Mapping[bytes, Any]) -> None:
        """Make the dispatcher of an operator, anew if its options have changed: what it had is lost to the task then."""
        if self._options.get(operator) == digest:
            return
        self._open = {ticket for ticket in self._open if ticket.operator != operator}
        self._options[operator] = digest
        self._dispatchers[operator] = Dispatcher(loaded[digest], f"{self._task}:{operator}")

    def _collect(self) -> None:
        for dispatcher in self._dispatchers.values():
            for ticket, settled in dispatcher.take_settled():
                if ticket in self._open:  # else its task has gone on without it
                    self._open.remove(ticket)
                    self._settled[ticket] = settled

    def _seen(self, operator: str, now_ms: int) -> Work:
        began = [at for (name, _), at in self._running.items() if name == operator]
        ready = sum(1 for ticket in self._open if ticket.operator == operator) - len(began)
        ages = [now_ms - at for at in began] or [0]
        return Work(len(began), max(ready, 0), max(ages), min(ages))
