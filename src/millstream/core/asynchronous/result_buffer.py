"""Result buffer: keeps the results of calls until a micro-batch that has received them is committed.

A micro-batch receives results and issues calls; only its commit makes both durable. If it fails, it is repeated from the previous
commit. The result buffer therefore keeps each result until a later micro-batch begins without asking for it (see ``async_worker`` for
what a micro-batch reports). A ticket that is not in flight and whose result was never returned belongs to a failed attempt. Its call is
forgotten, so that it does not block its key: the record has been or will be sent under another ticket.

Source: KIP-311, the fencing by epoch of "Store & commit": late results are ignored.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.core.asynchronous.async_worker import Work
from millstream.core.asynchronous.call import Call, InFlightTickets, Settled, Ticket, TicketGroup, tickets
from millstream.core.asynchronous.dispatcher import Dispatcher

_NO_NUMBERS: frozenset[int] = frozenset()


class ResultBuffer:
    """The results of one operator of one task. Owned by the async worker's session."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._results: list[tuple[Ticket, Settled]] = []
        self._offered: dict[TicketGroup, set[int]] = {}
        """The record numbers of the known tickets."""
        self._given = 0
        """How many of the results have been returned to a micro-batch."""

    @property
    def idle(self) -> bool:
        """True if no call runs or waits and no result is left."""
        self._collect()
        return not self._results and self._dispatcher.idle

    def work(self, now_ms: int) -> Work:
        """Return the state of the calls. ``next_ms`` is 0 if there are results that no micro-batch has received."""
        self._collect()
        work = self._dispatcher.work(now_ms)
        return replace(work, next_ms=0) if len(self._results) > self._given else work

    def knows(self, ticket: Ticket) -> bool:
        """Return True if a call was offered under this ticket and has not been forgotten."""
        return ticket.number in self._offered.get((ticket.epoch, ticket.turn), _NO_NUMBERS)

    def begin(self, operator: str, in_flight: InFlightTickets) -> list[Ticket]:
        """Begin a micro-batch with the tickets in flight at the task's last commit. Return the lost ones."""
        self._collect()
        gone = self._take_gone(in_flight)
        given, results = self._results[: self._given], self._results[self._given :]
        applied = [ticket for ticket, _ in given if _has(gone, ticket)]
        if len(applied) < sum(map(len, gone.values())):
            self._dispatcher.forget(set(tickets(operator, gone)).difference(applied))
            results = [result for result in results if not _has(gone, result[0])]
        if applied:
            self._dispatcher.unblock(applied)
            given = [] if len(applied) == len(given) else [each for each in given if not _has(gone, each[0])]
        self._results, self._given = given + results, 0
        lost = {
            group: numbers - self._offered.get(group, _NO_NUMBERS) for group, numbers in in_flight.items()
        }
        return list(tickets(operator, lost))

    def results(self) -> list[tuple[Ticket, Settled]]:
        """Return the results in order. They stay in the buffer until the next commit."""
        self._collect()
        self._given = len(self._results)
        return self._results

    def offer(self, call: Call, now_ms: int) -> None:
        ticket = call.ticket
        self._offered.setdefault((ticket.epoch, ticket.turn), set()).add(ticket.number)
        self._dispatcher.offer(call, now_ms)

    def _take_gone(self, in_flight: InFlightTickets) -> dict[TicketGroup, set[int]]:
        """Remove the tickets that are not in flight, and return them."""
        gone: dict[TicketGroup, set[int]] = {}
        for group, offered in list(self._offered.items()):
            gone[group] = offered - in_flight.get(group, _NO_NUMBERS)
            offered -= gone[group]
            if not offered:
                del self._offered[group]
        return gone

    def _collect(self) -> None:
        self._results += self._dispatcher.take_settled()


def _has(groups: InFlightTickets, ticket: Ticket) -> bool:
    _, number, turn, epoch = ticket
    return number in groups.get((epoch, turn), _NO_NUMBERS)
