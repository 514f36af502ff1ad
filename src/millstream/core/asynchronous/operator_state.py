"""Operator state: the interface between a task and the in-flight records of an operator, and the metrics of these records."""

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
    """Metrics of one asynchronous operator in a task, or of all operators together (docs/reference/metrics.md).

    Attributes:
        with_async_worker: Records in flight.
        waiting: Records that wait for a retry, a delay or a time.
        delayed: The waiting records that do not wait for a retry.
        parked: Records that could be called but have not been sent.
        held: Records whose calls have ended and that wait for earlier records.
        room: How many more records can be taken.
        most_per_key: Unfinished records in the longest key queue.
        oldest_ms: When the oldest unfinished record arrived, ms since the epoch; None if there is none.
        settled: Calls that ended in this step.
        retries: Attempts in this step that will be retried.
        dead_letters: Records sent to a dead-letter topic in this step.
        ignored: Results in this step whose tickets were no longer in flight.
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
        """The number of records that have arrived and not retired."""
        return self.with_async_worker + self.waiting + self.parked + self.held


@dataclass(frozen=True)
class CallFigures(CallCounts):
    """Metrics of one asynchronous operator in a task.

    Attributes:
        hottest: The most frequent key in a sample of this step, its count, and the sample size; None without order by key or
            without records.
    """

    hottest: tuple[str, int, int] | None = None


def together(figures: Collection[CallCounts]) -> CallCounts:
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
    """The in-flight records of an operator. The defaults are for a processor that does its own asynchronous work."""

    name: str

    @property
    def calls(self) -> Calls | None:
        """The options of the calls; None if the processor does its own asynchronous work."""
        return None

    @property
    def unfinished(self) -> bool:
        """True if there are unfinished records."""

    def collect(self) -> None:
        """Begin a step: process the results since the last step."""

    def issue(self) -> Iterable[Call]:
        """Return the calls to send to the async worker now."""
        return ()

    def save(self) -> None:
        """End a step: write the stores."""

    def done(self, ticket: Ticket, settled: Settled) -> None:
        return

    def under_way(self) -> Iterable[Ticket]:
        return ()

    def lost(self, ticket: Ticket) -> None:
        return

    def next_due(self) -> int | None:
        """Return when the operator must run next, ms since the epoch; None if not at a known time."""

    def figures(self) -> CallFigures:
        """Return the metrics and reset the counters."""


def first_due(operators: Iterable[AsyncOperatorState]) -> int | None:
    return earliest(*(operator.next_due() for operator in operators))
