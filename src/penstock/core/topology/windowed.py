"""Nodes of windowed aggregations: a grouped stream becomes a table by key and window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.model.calendars import Windows
from penstock.core.model.windows import EmitStrategy, SessionWindows, SlidingWindows, TimeWindows
from penstock.core.topology.folds import Fold
from penstock.core.topology.nodes import Materialised
from penstock.core.topology.specs import SessionSpec, StoreSpec, WindowSpec, with_number


class _GivesResults:
    """What windowed aggregations have in common: when they give results, and where they find their time again."""

    store: StoreSpec
    emit: EmitStrategy
    input: int

    @property
    def remembered_as(self) -> str:
        """Name of the store; the further inputs of a cogroup, which share one, add their numbers."""
        return with_number(self.store.name, self.input)

    @property
    def closes_idle(self) -> bool:
        """Whether its emit strategy closes idle."""
        return self.emit.close_idle_after_ms is not None


class _KeepsOpen(_GivesResults):
    """What aggregations have in common that keep beside their store what has not closed."""

    open: StoreSpec | None

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the store of the results, and of that of the open ones."""
        return (self.store.name,) if self.open is None else (self.store.name, self.open.name)


@dataclass(frozen=True)
class WindowedAggregate(_GivesResults, Materialised):
    """Aggregates a grouped stream per key and window of a fixed size (``KStreamWindowAggregate``).

    Attributes:
        store: A window store, in the order of time if results are given when windows close.
        windows: The windows.
        emit: When results are given.
        initializer: Makes the first aggregate of a window; None takes the first value itself (reduce).
        aggregator: Key, value and aggregate to the new aggregate; None deletes the window's entry.
        fits: Whether every aggregate is known to fit the store's value serde, as a count does.
        shared: Whether other nodes, each with a stream time of its own, write to the store too.
        fold: What the aggregator does, if it is no function of the user.
        input: Which of these it is, counted from 0.
    """

    store: WindowSpec
    windows: TimeWindows
    emit: EmitStrategy
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    fits: bool = False
    shared: bool = False
    fold: Fold | None = None
    input: int = 0


@dataclass(frozen=True)
class CalendarAggregate(_GivesResults, Materialised):
    """Aggregates a grouped stream per key and window of the user's own (``KStreamWindowAggregate``).

    Attributes:
        store: A window store, in the order of time if results are given when windows close.
        windows: The windows.
        emit: When results are given.
        initializer: Makes the first aggregate of a window; None takes the first value itself (reduce).
        aggregator: Key, value and aggregate to the new aggregate; None deletes the window's entry.
        fold: What the aggregator does, if it is no function of the user.
        input: Which of the aggregations it is that share the store, counted from 0.
    """

    store: WindowSpec
    windows: Windows
    emit: EmitStrategy
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    fold: Fold | None = None
    input: int = 0


@dataclass(frozen=True)
class SlidingAggregate(_KeepsOpen, Materialised):
    """Aggregates a grouped stream per key and sliding window (``KStreamSlidingWindowAggregate``).

    Attributes:
        store: A window store.
        windows: The windows.
        emit: When results are given.
        open: The store of the windows that have not closed, in the order of their starts; None if results are given at
            every record.
        initializer: Makes the first aggregate of a window; None takes the first value itself (reduce).
        aggregator: Key, value and aggregate to the new aggregate; None deletes the window's entry.
        input: Which of the aggregations it is that share the store, counted from 0.
    """

    store: WindowSpec
    windows: SlidingWindows
    emit: EmitStrategy
    open: StoreSpec | None
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    input: int = 0


@dataclass(frozen=True)
class SessionAggregate(_KeepsOpen, Materialised):
    """Aggregates a grouped stream per key and session (``KStreamSessionWindowAggregate``).

    Attributes:
        store: A session store.
        windows: The sessions.
        emit: When results are given.
        open: The store of the sessions that have not closed, in the order of their ends; None if results are given at
            every record.
        initializer: Makes the aggregate that others are merged onto; None takes the first one itself (reduce).
        aggregator: Key, value and aggregate to the new aggregate; None deletes the session's entry.
        merger: Key and the aggregates of two sessions, the earlier one first, to that of both.
        fold: What the aggregator does, if it is no function of the user.
        input: Which of the aggregations it is that share the store, counted from 0.
    """

    store: SessionSpec
    windows: SessionWindows
    emit: EmitStrategy
    open: StoreSpec | None
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    merger: Callable[[Any, Any, Any], Any]
    fold: Fold | None = None
    input: int = 0
