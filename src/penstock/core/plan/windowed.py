"""Nodes of windowed aggregations: a grouped stream becomes a table by key and window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.model.windows import EmitStrategy, SessionWindows, TimeWindows
from penstock.core.plan.nodes import Materialised
from penstock.core.plan.specs import SessionSpec, WindowSpec


@dataclass(frozen=True)
class WindowedAggregate(Materialised):
    """Aggregates a grouped stream per key and window of a fixed size (``KStreamWindowAggregate``).

    Attributes:
        store: A window store, in the order of time if results are given when windows close.
        windows: The windows.
        emit: When results are given.
        initializer: Makes the first aggregate of a window; None takes the first value itself (reduce).
        aggregator: Key, value and aggregate to the new aggregate; None deletes the window's entry.
        fits: Whether every aggregate is known to fit the store's value serde, as a count does.
    """

    store: WindowSpec
    windows: TimeWindows
    emit: EmitStrategy
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    fits: bool = False


@dataclass(frozen=True)
class SessionAggregate(Materialised):
    """Aggregates a grouped stream per key and session (``KStreamSessionWindowAggregate``).

    Attributes:
        store: A session store.
        windows: The sessions.
        initializer: Makes the aggregate that others are merged onto; None takes the first one itself (reduce).
        aggregator: Key, value and aggregate to the new aggregate; None deletes the session's entry.
        merger: Key and the aggregates of two sessions, the earlier one first, to that of both.
    """

    store: SessionSpec
    windows: SessionWindows
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    merger: Callable[[Any, Any, Any], Any]
