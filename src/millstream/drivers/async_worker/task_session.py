"""Session: the calls that an async worker makes for one task.

A session keeps the calls of the task between its micro-batches. It has one *channel* per operator: a dispatcher, which decides which calls
run, and a result buffer, which keeps results until the task has committed them. A session has no clock and no thread. The async worker
supplies the time and executes the calls, so all decisions can be tested with values.

The task holds a *lease*, which each of its questions renews. When it has ended, no call begins, because the task may have moved to another
host, whose async worker makes the same calls. Calls that are running continue.

The task uses the application's clock, which a user may set or move. Calls use the async worker's clock, which never jumps. A time is
converted between the clocks so that its distance from now remains the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import Call, InFlightTickets, Settled, Start, Ticket, Waits, tickets
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.asynchronous.result_buffer import ResultBuffer
from millstream.core.model.durations import earliest
from millstream.core.model.errors import AsyncWorkerError
from millstream.drivers.async_worker.worker_messages import WorkerQuestion

_STEP_MS = 1_000
"""Clocks that differ by less are considered equal, because a question takes time."""


_LEASE_MS = 30_000
"""Shortest lease. Micro-batches may be that far apart without a pause of the calls."""
_BATCHES = 10
"""Length of the lease in micro-batches, if they are long."""


class _Channel(NamedTuple):
    """One operator, and the digest of its options."""

    options: bytes
    dispatcher: Dispatcher
    results: ResultBuffer


class Session:
    """The calls of one task. Owned by the async worker.

    Attributes:
        asked_ms: When the task last asked, in ms since the epoch.
    """

    def __init__(self, task: str) -> None:
        self.asked_ms = 0
        self._task = task
        self._batch = -1
        self._batch_ms = 0
        """When the task first asked in its micro-batch, in ms since the epoch."""
        self._lease_ms = _LEASE_MS
        self._channels: dict[str, _Channel] = {}
        self._numbers = count(1)
        self._replaced: list[tuple[str, int]] = []
        """Running starts of dispatchers that were replaced."""

    @property
    def idle(self) -> bool:
        """Whether no call is running or waiting, and no result is left."""
        return all(channel.results.idle for channel in self._channels.values())

    @property
    def lease_ends_ms(self) -> int:
        """When calls no longer begin unless the task asks again, in ms since the epoch."""
        return self.asked_ms + self._lease_ms

    def ask(self, question: WorkerQuestion, loaded: Mapping[bytes, Any], now_ms: int) -> Answered:
        """Answer the question of a task.

        Args:
            loaded: Functions and options by digest, including all those of the question.
            now_ms: The time by the async worker's clock, in ms since the epoch.

        Raises:
            AsyncWorkerError: If the question belongs to an earlier micro-batch: an attempt that was considered lost may still be
                running.
        """
        if question.batch < self._batch:
            raise AsyncWorkerError(
                f"task {self._task} is already in micro-batch {self._batch}; the attempt at micro-batch {question.batch} "
                "is outdated"
            )
        self._renew_lease(question.batch, now_ms)
        ahead_ms = question.now_ms - now_ms
        if abs(ahead_ms) < _STEP_MS:
            ahead_ms = 0
        for operator, digest in question.options.items():
            self._set_options(operator, digest, loaded)
        lost = None if question.in_flight is None else self._begin(question.in_flight)
        for operator, orders in question.orders.items():
            results = self._channels[operator].results
            for number, turn, epoch, function, *rest in zip(*orders):
                ticket = Ticket(operator, number, turn, epoch)
                if lost:
                    lost.discard(ticket)
                if not results.knows(ticket):
                    results.offer(_by_our_clock(Call(ticket, loaded[function], *rest), ahead_ms), now_ms)
        return Answered(
            () if lost is None else tuple(self._settled(ahead_ms)),
            tuple(sorted(lost or ())),
            {name: channel.results.work(now_ms) for name, channel in self._channels.items()},
        )

    def start(self, now_ms: int, reserve: Callable[[Call], bool]) -> Iterator[tuple[str, Start]]:
        """Start the calls that may begin, and yield each with its operator. None may if the lease has ended.

        Args:
            reserve: Reserves what a call needs to run; False if the call has to wait for it.
        """
        if now_ms > self.lease_ends_ms:
            return
        for name, channel in self._channels.items():
            for start in channel.dispatcher.start(now_ms, reserve):
                yield name, start

    def end(self, operator: str, number: int, answers: Sequence[Any], now_ms: int) -> None:
        self._channels[operator].dispatcher.end(number, answers, now_ms)

    def expire(self, now_ms: int) -> list[tuple[str, int]]:
        """Time out starts. Return these and the starts whose options were replaced, for cancellation, as operator and number."""
        replaced, self._replaced = self._replaced, []
        expired = (
            (name, number)
            for name, channel in self._channels.items()
            for number in channel.dispatcher.expire(now_ms)
        )
        return [*replaced, *expired]

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Return when the next call begins or times out, in ms since the epoch, or None if none will."""
        if now_ms > self.lease_ends_ms:
            return earliest(*(channel.dispatcher.timeout_at_ms() for channel in self._channels.values()))
        return earliest(*(channel.dispatcher.wake_at_ms(now_ms) for channel in self._channels.values()))

    def _renew_lease(self, batch: int, now_ms: int) -> None:
        if batch != self._batch:
            # A task that had no calls may not have asked for hours, which says nothing about its micro-batches.
            last_ms = 0 if self.idle else now_ms - self._batch_ms
            self._lease_ms = max(_LEASE_MS, _BATCHES * last_ms)
            self._batch, self._batch_ms = batch, now_ms
        self.asked_ms = now_ms

    def _begin(self, in_flight: Mapping[str, InFlightTickets]) -> set[Ticket]:
        """Begin a micro-batch with the task's in-flight tickets. Return the lost ones."""
        unknown = (
            tickets(name, numbers) for name, numbers in in_flight.items() if name not in self._channels
        )
        lost = (
            channel.results.begin(name, in_flight.get(name, {})) for name, channel in self._channels.items()
        )
        return set().union(*unknown, *lost)

    def _settled(self, ahead_ms: int) -> Iterator[tuple[Ticket, Settled]]:
        for channel in self._channels.values():
            results = channel.results.results()
            if ahead_ms:
                results = [
                    (ticket, settled.moved(ahead_ms) if isinstance(settled, Waits) else settled)
                    for ticket, settled in results
                ]
            yield from results

    def _set_options(self, operator: str, digest: bytes, loaded: Mapping[bytes, Any]) -> None:
        """Create an operator's dispatcher. Replace it if its options have changed; the task then issues its calls again."""
        channel = self._channels.get(operator)
        if channel is not None:
            if channel.options == digest:
                return
            self._replaced += ((operator, number) for number in channel.dispatcher.running)
        dispatcher = Dispatcher(loaded[digest], f"{self._task}:{operator}", self._numbers)
        self._channels[operator] = _Channel(digest, dispatcher, ResultBuffer(dispatcher))


def _by_our_clock(call: Call, ahead_ms: int) -> Call:
    if not ahead_ms:
        return call
    begun_ms = None if call.begun_ms is None else call.begun_ms - ahead_ms
    return call._replace(due_ms=call.due_ms and call.due_ms - ahead_ms, begun_ms=begun_ms)
