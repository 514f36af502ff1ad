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

from collections.abc import Collection

from penstock.core.asynchronous.call import Call, Settled, Ticket
from penstock.core.asynchronous.dispatcher import Dispatcher


class Exchange:
    """Between one operator of one task and its dispatcher. Owned by who executes the calls.

    Args:
        dispatcher: What runs the calls.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._answers: dict[Ticket, Settled] = {}
        self._offered: set[Ticket] = set()
        self._given: set[Ticket] = set()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to give."""
        self._collect()
        return not self._answers and self._dispatcher.idle

    def knows(self, ticket: Ticket) -> bool:
        """Tell whether a call was offered under this ticket and has not been forgotten."""
        return ticket in self._offered

    def begin(self, held: Collection[Ticket]) -> list[Ticket]:
        """Begin a micro-batch.

        Args:
            held: What the task had under way at its last commit.

        Returns:
            Those of them that are lost.
        """
        self._collect()
        asked = set(held)
        self._dispatcher.forget(self._offered - asked - self._given)
        self._answers = {ticket: settled for ticket, settled in self._answers.items() if ticket in asked}
        lost = [ticket for ticket in held if ticket not in self._offered]
        self._offered &= asked
        self._given &= asked
        return lost

    def answers(self) -> list[tuple[Ticket, Settled]]:
        """Give the answers there are, in the order in which they came; they stay here until the next commit."""
        self._collect()
        self._given |= self._answers.keys()
        return list(self._answers.items())

    def offer(self, call: Call, now_ms: int) -> None:
        """Take in a call; see ``Dispatcher.offer``."""
        self._offered.add(call.ticket)
        self._dispatcher.offer(call, now_ms)

    def _collect(self) -> None:
        self._answers.update(self._dispatcher.take_settled())
