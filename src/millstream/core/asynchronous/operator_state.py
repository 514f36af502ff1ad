"""Operator state: what a task sees of the in-flight records of an operator, and their figures."""

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
        with_async_worker: Records sent to the async worker.
        waiting: Records that wait for a retry or a delay.
        delayed: Those of them that wait for a delay.
        parked: Records that could be called and have not been sent.
        held: Records whose calls have ended, and that wait for those in front of them.
        room: How many more records can be taken in.
        most_per_key: InFlightRecord records of the key that has most.
        oldest_ms: When the oldest unfinished record came, ms since the epoch; None if there is none.
        settled: Attempts that ended in this step.
        retries: Attempts that will be followed by another, in this step.
        dead_letters: Records that went to a dead-letter topic, in this step.
        ignored: Results of tickets that were no longer in flight, in this step.
    """

    with_async_worker: int = 0
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
        return self.with_async_worker + self.waiting + self.parked + self.held


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
        name: sum(getattr(counts, name) for counts in figures)
        for name in CallCounts.__dataclass_fields__
        if name not in _NO_SUMS
    }
    return CallCounts(
        **sums,
        room=min(counts.room for counts in figures),
        most_per_key=max(counts.most_per_key for counts in figures),
        oldest_ms=earliest(*(counts.oldest_ms for counts in figures)),
    )


class AsyncOperatorState(Protocol):
    """The in-flight records of an operator, as its task sees them."""

    name: str

    @property
    def calls(self) -> Calls | None:
        """How the operator calls; None if it calls by itself."""

    def collect(self) -> None:
        """Begin a step: process the results that have come since the last one."""

    def issue(self) -> Iterable[Call]:
        """Return the calls to send to the async worker now."""

    def save(self) -> None:
        """End a step: bring the store up to date."""

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Store the result of a call."""

    def under_way(self) -> Iterable[Ticket]:
        """Return the tickets of the records that are with the async worker."""

    def lost(self, ticket: Ticket) -> None:
        """Take back a record that the async worker does not have."""

    def next_due(self) -> int | None:
        """Return when a record is to be sent next, ms since the epoch; None if never."""

    def figures(self) -> CallFigures:
        """Return the metrics and reset the counters."""


def first_due(operators: Iterable[AsyncOperatorState]) -> int | None:
    """Return when a record of any operator is to be sent next; None if never."""
    return earliest(*(operator.next_due() for operator in operators))
