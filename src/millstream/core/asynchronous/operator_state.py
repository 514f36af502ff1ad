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
    """Metrics of an asynchronous operator in a task, or of all together (docs/reference/metrics.md).

    Attributes:
        with_async_worker: Records in flight.
        parked: Records that could be called and were not sent.
        held: Records whose calls have ended, and that wait for earlier ones.
        room: How many more records can be taken.
        most_per_key: Unfinished records of the longest key queue.
        oldest_ms: When the oldest unfinished record arrived, ms since the epoch; None if there is none.
        retries: Attempts in this step that will be retried.
        dead_letters: Records that went to a dead-letter topic, in this step.
        ignored: Results of this step whose tickets were no longer in flight.
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
        """All records that have arrived and not retired."""
        return self.with_async_worker + self.waiting + self.parked + self.held


@dataclass(frozen=True)
class CallFigures(CallCounts):
    """Metrics of one asynchronous operator in a task.

    Attributes:
        hottest: The most frequent key of a sample of this step, its count, and the sample's size; None without order by key, or
            without records.
    """

    hottest: tuple[str, int, int] | None = None


def together(figures: Collection[CallCounts]) -> CallCounts:
    """Combine the metrics of several operators, at least one."""
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
    """The in-flight records of an operator, as its task sees them. By default, it issues no calls: its processor makes its own."""

    name: str

    @property
    def calls(self) -> Calls | None:
        """The options of its calls; None if the processor makes its own."""
        return None

    def collect(self) -> None:
        """Begin a step: process the results since the last one."""

    def issue(self) -> Iterable[Call]:
        """Return the calls to send to the async worker now."""
        return ()

    def save(self) -> None:
        """End a step: write the stores."""

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Store the result of a call."""
        return

    def under_way(self) -> Iterable[Ticket]:
        """Return the tickets in flight."""
        return ()

    def lost(self, ticket: Ticket) -> None:
        """Take back a call that the async worker has lost."""
        return

    def next_due(self) -> int | None:
        """Return when a record is due, ms since the epoch; None if never."""

    def figures(self) -> CallFigures:
        """Return the metrics and reset the counters."""


def first_due(operators: Iterable[AsyncOperatorState]) -> int | None:
    return earliest(*(operator.next_due() for operator in operators))
