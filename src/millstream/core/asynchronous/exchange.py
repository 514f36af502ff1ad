"""Exchange: what passes between a task and its dispatcher, across micro-batches that may come to nothing.

A micro-batch takes answers in and hands calls over; only its commit makes both true. If it fails, it is run again from what was
committed before. So whoever executes calls keeps every answer until a later micro-batch begins without asking for it: the task
says what it *holds*, the tickets that were under way in its last commit, and from that follows the rest.

* An answer to a ticket that is held is given, as often as it takes.
* A ticket that is held and not known here is *lost*: the task issues it again.
* A ticket that is not held and was never given to a micro-batch belongs to one that came to nothing. Its call is forgotten,
  so it blocks nothing; the record has been, or will be, handed over under another ticket.

Source: the fence by epoch of KIP-311's "Store & commit"; answers that are late count as nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.core.asynchronous.call import Call, Held, Settled, Ticket, TicketGroup, tickets
from millstream.core.asynchronous.dispatcher import Dispatcher

_NONE: frozenset[int] = frozenset()


class Exchange:
    """Between one operator of one task and its dispatcher. Owned by who executes the calls.

    Args:
        dispatcher: What runs the calls.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._answers: list[tuple[Ticket, Settled]] = []
        self._offered: dict[TicketGroup, dict[int, Ticket]] = {}
        self._given = 0
        """How many of the answers were given to a micro-batch."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to give."""
        self._collect()
        return not self._answers and self._dispatcher.idle

    @property
    def has_news(self) -> bool:
        """Whether there are answers that no micro-batch was given yet."""
        self._collect()
        return len(self._answers) > self._given

    def knows(self, ticket: Ticket) -> bool:
        """Return whether a call was offered under this ticket and has not been forgotten."""
        return ticket.number in self._offered.get((ticket.epoch, ticket.turn), _NONE)

    def begin(self, operator: str, held: Held) -> list[Ticket]:
        """Begin a micro-batch.

        Args:
            operator: The operator.
            held: What the task had under way at its last commit.

        Returns:
            Those of them that are lost.
        """
        self._collect()
        gone = set(self._take_out(held))
        if gone:
            given = {ticket for ticket, _ in self._answers[: self._given]}
            self._dispatcher.forget(gone - given)
            self._dispatcher.unblock(gone & given)
        self._answers = [
            (ticket, settled)
            for ticket, settled in self._answers
            if ticket.number in held.get((ticket.epoch, ticket.turn), _NONE)
        ]
        self._given = 0
        lost = {group: numbers - self._offered.get(group, {}).keys() for group, numbers in held.items()}
        return list(tickets(operator, lost))

    def answers(self) -> list[tuple[Ticket, Settled]]:
        """Return the answers there are, in the order in which they came; they stay here until the next commit."""
        self._collect()
        self._given = len(self._answers)
        return self._answers

    def offer(self, call: Call, now_ms: int) -> None:
        """Take in a call; see ``Dispatcher.offer``."""
        ticket = call.ticket
        self._offered.setdefault((ticket.epoch, ticket.turn), {})[ticket.number] = ticket
        self._dispatcher.offer(call, now_ms)

    def _take_out(self, held: Held) -> Iterator[Ticket]:
        """Take out what is not held."""
        for group, there in list(self._offered.items()):
            for number in there.keys() - held.get(group, _NONE):
                yield there.pop(number)
            if not there:
                del self._offered[group]

    def _collect(self) -> None:
        self._answers += self._dispatcher.take_settled()
