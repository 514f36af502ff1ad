"""Nodes of windowed aggregations: a grouped stream becomes a table by key and window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.model.windows import EmitStrategy, TimeWindows
from penstock.core.plan.nodes import Materialised
from penstock.core.plan.specs import WindowSpec


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
