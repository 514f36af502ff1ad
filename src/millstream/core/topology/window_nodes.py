"""Nodes of windowed aggregations, which turn a grouped stream into a table by key and window, and of suppression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from millstream.core.model.calendars import UnlimitedWindows, Windows
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.suppressed import Suppressed
from millstream.core.model.windows import EmitStrategy, SessionWindows, SlidingWindows, TimeWindows
from millstream.core.topology import nodes as n
from millstream.core.topology.folds import Fold
from millstream.core.topology.nodes import Materialised
from millstream.core.topology.stores import SessionSpec, StoreSpec, VersionedSpec, WindowSpec


class _WindowedNode:
    """Base of windowed aggregations: defines when they emit results, and the name of their persistent data."""

    store: StoreSpec
    emit: EmitStrategy
    input: int

    @property
    def remembered_as(self) -> str:
        """Name of the store. Further inputs of a cogroup share the store and append ``#``, which no store name contains, and a number."""
        return f"{self.store.name}#{self.input}" if self.input else self.store.name

    @property
    def closes_idle(self) -> bool:
        return self.emit.close_idle_after_ms is not None


@dataclass(frozen=True)
class WindowedAggregate(_WindowedNode, Materialised):
    """Aggregates a grouped stream per key and window of a fixed size (``KStreamWindowAggregate``).

    Attributes:
        store: A window store, ordered by time if results are emitted on window close.
        initializer: Creates the first aggregate of a window; None uses the first value (reduce).
        aggregator: Maps key, value and aggregate to the new aggregate; None deletes the window's entry.
        fits: Whether every aggregate is known to fit the store's value serde, as a count does.
        shared: Whether other nodes, each with its own stream time, also write to the store.
        fold: The built-in aggregation, if the aggregator is not a user function.
        input: Index of this node among the aggregations that share the store, from 0.
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

    divisible: ClassVar[bool] = True


@dataclass(frozen=True)
class CalendarAggregate(_WindowedNode, Materialised):
    """Aggregates a grouped stream per key and user-defined window; attributes as of :class:`WindowedAggregate`."""

    store: WindowSpec
    windows: Windows
    emit: EmitStrategy
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    fold: Fold | None = None
    input: int = 0


@dataclass(frozen=True)
class SlidingAggregate(_WindowedNode, Materialised):
    """Aggregates a grouped stream per key and sliding window (``KStreamSlidingWindowAggregate``).

    Attributes:
        open: The store of open windows, ordered by start; None if results are emitted at every record.
    """

    store: WindowSpec
    windows: SlidingWindows
    emit: EmitStrategy
    open: StoreSpec | None
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    input: int = 0


@dataclass(frozen=True)
class SessionAggregate(_WindowedNode, Materialised):
    """Aggregates a grouped stream per key and session (``KStreamSessionWindowAggregate``).

    Attributes:
        open: The store of open sessions, ordered by end; None if results are emitted at every record.
        initializer: Creates the aggregate into which others are merged; None uses the first one (reduce).
        aggregator: Maps key, value and aggregate to the new aggregate; None deletes the session's entry.
        merger: Maps key and the aggregates of two sessions, the earlier session first, to the aggregate of both.
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

    divisible: ClassVar[bool] = True


def takes_null_values(node: n.Node) -> bool:
    """Return whether the computation of a node includes records without a value. Other nodes skip them, also for their stream time."""
    if isinstance(node, SlidingAggregate):
        return False
    fold = getattr(node, "fold", None)
    return fold is None or fold is Fold.COUNT


_OTHER_KEYS = (n.Map, n.FlatMap, n.SelectKey, n.GroupTable, n.Process)
_FROM_A_TOPIC = (n.Repartition, n.Source)


@dataclass(frozen=True)
class Suppress(n.KeyedNode):
    """Buffers updates (``KTableSuppress``). Table to table.

    Attributes:
        wait_ms: How long after its buffer time an update is emitted, ms.
        buffer: The store of buffered updates, ordered by time.
        buffer_times: The store of the time at which each row was first buffered; None if the window of the row determines that time.
        closes: Names of the aggregations whose windows close together with those of this node while the input is idle.
    """

    key: Serde[Any]
    value: Serde[Any]
    suppressed: Suppressed
    wait_ms: int
    buffer: StoreSpec
    buffer_times: StoreSpec | None
    closes: tuple[str, ...] = ()

    table: ClassVar[bool] = True
    divisible: ClassVar[bool] = True

    @property
    def remembered_as(self) -> str:
        return self.buffer.name

    @property
    def closes_idle(self) -> bool:
        return self.suppressed.close_idle_after_ms is not None


class Closing(NamedTuple):
    """When the windows of a table close.

    Attributes:
        wait_ms: How long after their end they close, in stream time, ms.
        apart: Whether records pass through a topic between the aggregations and the table.
    """

    wait_ms: int
    aggregations: tuple[str, ...]
    apart: bool


def closing_of(nodes: Mapping[str, n.Node], table: str) -> Closing:
    """Return when the windows of a table close: after the longest wait of all upstream aggregations.

    Raises:
        TopologyError: If the table is not windowed, or its window is unlimited.

    Source: ``GraphGraceSearchUtil``.
    """
    closing = _search(nodes, nodes[table])
    if closing is None:
        raise TopologyError(
            f"{table!r} is not a windowed table, so it has no windows to close; suppress it with "
            "ms.Suppressed.until_time_limit(...), or add windowed_by(...) before its aggregation"
        )
    return closing


def _search(nodes: Mapping[str, n.Node], node: n.Node) -> Closing | None:
    if isinstance(node, (WindowedAggregate, SlidingAggregate, CalendarAggregate)):
        if isinstance(node.windows, UnlimitedWindows):
            raise TopologyError(
                f"{node.name!r} aggregates by an unlimited window, which never closes, so no result would be emitted; suppress it "
                "with ms.Suppressed.until_time_limit(...)"
            )
        return Closing(node.windows.grace_ms, (node.name,), apart=False)
    if isinstance(node, SessionAggregate):
        return Closing(node.windows.gap_ms + node.windows.grace_ms, (node.name,), apart=False)
    if isinstance(node, _OTHER_KEYS):
        return None
    closings = [closing for parent in node.parents if (closing := _search(nodes, nodes[parent])) is not None]
    if not closings:
        return None
    return Closing(
        max(closing.wait_ms for closing in closings),
        tuple(dict.fromkeys(name for closing in closings for name in closing.aggregations)),
        isinstance(node, _FROM_A_TOPIC) or any(closing.apart for closing in closings),
    )


def is_windowed_here(nodes: Mapping[str, n.Node], table: str) -> bool:
    """Return whether a table is windowed and is in the same tasks as the aggregation of its keys."""
    closing = _search(nodes, nodes[table])
    return closing is not None and not closing.apart


def check_no_versions(nodes: Mapping[str, n.Node], table: str) -> None:
    """Reject suppression of a versioned table."""
    node = nodes[table]
    if isinstance(node, (n.TableFilter, n.TableMapValues)):
        check_no_versions(nodes, node.parents[0])
    elif isinstance(getattr(node, "store", None), VersionedSpec):
        raise TopologyError(
            f"{table!r} is a versioned table: each of its updates changes its history, and suppressed updates would be "
            "lost. Suppress a table without history_retention"
        )
