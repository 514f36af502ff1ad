"""Result buffer: results of calls, kept until a micro-batch that has taken them in is committed.

A micro-batch takes results in and issues calls; only its commit makes both durable. If it fails, it is run again from what was
committed before. So whoever executes calls keeps every result until a later micro-batch begins without asking for it: the task
names its *in-flight* tickets, those that were under way in its last commit, and the rest follows from them.

* The result of an in-flight ticket is returned, as often as it takes.
* An in-flight ticket that is unknown here is *lost*: the task issues the call again.
* A ticket that is not in flight, and whose result was never returned to a micro-batch, belongs to one that failed. Its call is
  forgotten, so it blocks nothing; the record has been, or will be, sent under another ticket.

Source: the fence by epoch of KIP-311's "Store & commit"; results that are late count as nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        self._offered: dict[TicketGroup, dict[int, Ticket]] = {}
        self._given = 0
        """How many results were returned to a micro-batch."""

    @property
    def idle(self) -> bool:
        """Whether no call runs or waits, and no result is left."""
        self._collect()
        return not self._results and self._dispatcher.idle

    def work(self, now_ms: int) -> Work:
        """Return the state of the calls; the next event is now if there are results that no micro-batch has got."""
        self._collect()
        work = self._dispatcher.work(now_ms)
        return replace(work, next_ms=0) if len(self._results) > self._given else work

    def knows(self, ticket: Ticket) -> bool:
        """Return whether a call was offered under this ticket and not forgotten."""
        return ticket.number in self._offered.get((ticket.epoch, ticket.turn), _NO_NUMBERS)

    def begin(self, operator: str, in_flight: InFlightTickets) -> list[Ticket]:
        """Begin a micro-batch with the tickets in flight at the task's last commit; return those that are lost."""
        self._collect()
        gone = set(self._take_gone(in_flight))
        if gone:
            given = {ticket for ticket, _ in self._results[: self._given]}
            self._dispatcher.forget(gone - given)
            self._dispatcher.unblock(gone & given)
        self._results = [
            (ticket, settled)
            for ticket, settled in self._results
            if ticket.number in in_flight.get((ticket.epoch, ticket.turn), _NO_NUMBERS)
        ]
        self._given = 0
        lost = {group: numbers - self._offered.get(group, {}).keys() for group, numbers in in_flight.items()}
        return list(tickets(operator, lost))

    def results(self) -> list[tuple[Ticket, Settled]]:
        """Return the results in order; they stay until the next commit."""
        self._collect()
        self._given = len(self._results)
        return self._results

    def offer(self, call: Call, now_ms: int) -> None:
        ticket = call.ticket
        self._offered.setdefault((ticket.epoch, ticket.turn), {})[ticket.number] = ticket
        self._dispatcher.offer(call, now_ms)

    def _take_gone(self, in_flight: InFlightTickets) -> Iterator[Ticket]:
        for group, offered in list(self._offered.items()):
            for number in offered.keys() - in_flight.get(group, _NO_NUMBERS):
                yield offered.pop(number)
            if not offered:
                del self._offered[group]

    def _collect(self) -> None:
        self._results += self._dispatcher.take_settled()
