"""What a task sees of the unfinished records of an operator: its book, and the figures of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from millstream.core.asynchronous.call import Call, Settled, Ticket
from millstream.core.model.calls import Calls
from millstream.core.model.durations import earliest

_NO_SUMS: Final = frozenset({"room", "most_per_key", "oldest_ms"})


@dataclass(frozen=True)
class CallCounts:
    """What there is to see of an asynchronous operator in a task, or of all of them together (docs/reference/metrics.md).

    Attributes:
        with_station: Records handed to the station.
        waiting: Records that wait for a retry or a delay.
        delayed: Those of them that wait for a delay.
        parked: Records that could be called and have not been handed over.
        held: Records whose calls have ended, and that wait for those in front of them.
        room: How many more records can be taken in.
        most_per_key: Unfinished records of the key that has most.
        oldest_ms: When the oldest unfinished record came, ms since the epoch; None if there is none.
        settled: Attempts that ended in this step.
        retries: Attempts that will be followed by another, in this step.
        dead_letters: Records that went to a dead-letter topic, in this step.
        ignored: Answers to tickets that nobody held any more, in this step.
    """

    with_station: int = 0
    waiting: int = 0
    delayed: int = 0
    parked: int = 0
    held: int = 0
    room: int = 0
    most_per_key: int = 0
    oldest_ms: int | None = None
    settled: int = 0
    retries: int = 0
    dead_letters: int = 0
    ignored: int = 0

    @property
    def unfinished(self) -> int:
        """All records that have come and not retired."""
        return self.with_station + self.waiting + self.parked + self.held


@dataclass(frozen=True)
class CallFigures(CallCounts):
    """What there is to see of one asynchronous operator in a task.

    Attributes:
        hottest: The key that most records of a sample of those that came in this step have, how many, and of how many; None
            where keys have no order, or nothing came.
    """

    hottest: tuple[str, int, int] | None = None


def together(figures: Collection[CallCounts]) -> CallCounts:
    """Return what there is to see of several operators as one; there is at least one."""
    sums = {
        name: sum(getattr(one, name) for one in figures)
        for name in CallCounts.__dataclass_fields__
        if name not in _NO_SUMS
    }
    return CallCounts(
        **sums,
        room=min(one.room for one in figures),
        most_per_key=max(one.most_per_key for one in figures),
        oldest_ms=earliest(*(one.oldest_ms for one in figures)),
    )


class Book(Protocol):
    """What keeps the unfinished records of an operator, as its task sees it."""

    name: str

    @property
    def calls(self) -> Calls | None:
        """How the operator calls; None if it calls by itself."""

    def collect(self) -> None:
        """Begin a step: treat what has come since the last one."""

    def issue(self) -> Iterable[Call]:
        """Return the calls to hand to the station now."""

    def save(self) -> None:
        """End a step: bring the store up to date."""

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Take note of an answer."""

    def under_way(self) -> Iterable[Ticket]:
        """Return the tickets of the records that are with the station."""

    def lost(self, ticket: Ticket) -> None:
        """Take a record back that the station does not have."""

    def next_due(self) -> int | None:
        """Return when a record is to be handed over next, ms since the epoch; None if never."""

    def figures(self) -> CallFigures:
        """Return what there is to see, and begin to count anew."""


def first_due(books: Iterable[Book]) -> int | None:
    """Return when a record of any ledger is to be handed over next; None if never."""
    return earliest(*(book.next_due() for book in books))
