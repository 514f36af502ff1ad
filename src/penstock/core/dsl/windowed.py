"""TimeWindowedKStream: a stream by key and window, waiting for its aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.core.dsl.aggregators import combining, plus_one, zero
from penstock.core.dsl.graph import Graph, kept_as
from penstock.core.model import serdes
from penstock.core.model.errors import TopologyError
from penstock.core.model.serdes import Serde
from penstock.core.model.windowed import Windowed
from penstock.core.model.windows import EmitStrategy, TimeWindows
from penstock.core.plan.specs import Kept, WindowSpec
from penstock.core.plan.windowed import WindowedAggregate

if TYPE_CHECKING:
    from penstock.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class TimeWindowedKStream(Generic[K, V]):
    """Records by key and window. Made by ``KGroupedStream.windowed_by``.

    A result's key is ``Windowed(key, start, end)``, its timestamp the largest one of the window's records. Records without a
    key are left out and counted as dropped, and so is each window of a record for which it comes too late. Null values are
    *not* left out, other than in aggregations without windows: ``count`` counts them, and functions get them as None.

    Source: ``org.apache.kafka.streams.kstream.TimeWindowedKStream``.
    """

    def __init__(
        self,
        graph: Graph,
        source: Callable[[str], str],
        key: Serde[Any],
        value: Serde[Any],
        windows: TimeWindows,
        emit: EmitStrategy,
    ) -> None:
        self._graph = graph
        self._source = source
        self._key = key
        self._value = value
        self._windows = windows
        self._emit = emit

    def count(self, *, store: Kept | None = None) -> KTable[Windowed, int]:
        """Count the records per key and window.

        Args:
            store: Name of the window store of the counts, or ``ps.stores.options(name, retention=...)``.

        Returns:
            A table from key and window to count (64 bits).

        Raises:
            TopologyError: If the store's retention is shorter than size and grace together.

        Example:
            >>> import penstock as ps
            >>> builder = ps.StreamsBuilder()
            >>> clicks = builder.stream("clicks").group_by_key()
            >>> per_minute = clicks.windowed_by(ps.TumblingWindows(60_000, grace=5_000)).count(store="per-minute")
            >>> per_minute.to_stream(lambda window, _: window.key).to("counts", value=ps.serdes.int64)
            >>> driver = ps.testing.TopologyTestDriver(builder.build())
            >>> for timestamp in (0, 59_999, 60_000):
            ...     driver.pipe("clicks", "ann", "x", timestamp)
            >>> [(r.key, r.value) for r in driver.read("counts")]
            [('ann', 1), ('ann', 2), ('ann', 1)]
        """
        return self._aggregated(store, "COUNT", zero, plus_one, serdes.int64, fits=True)

    def reduce(
        self, reducer: Callable[[V, V], V | None], *, store: Kept | None = None
    ) -> KTable[Windowed, V]:
        """Combine the values per key and window; the first value of a window is taken as it is.

        Args:
            reducer: ``(value so far, new value) -> value``; None deletes the window's entry.
            store: As in :meth:`count`.

        Raises:
            TopologyError: As in :meth:`count`.
        """
        return self._aggregated(store, "REDUCE", None, combining(reducer), self._value)

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        value: Serde[A] | None = None,
        store: Kept | None = None,
    ) -> KTable[Windowed, A]:
        """Aggregate the records per key and window.

        Args:
            initializer: Makes the aggregate of a window.
            aggregator: ``(key, value, aggregate so far) -> aggregate``; None deletes the window's entry.
            value: Serde of the aggregates; None is the builder's default.
            store: As in :meth:`count`.

        Raises:
            TopologyError: As in :meth:`count`.
        """
        return self._aggregated(
            store, "AGGREGATE", initializer, aggregator, value or self._graph.default_value
        )

    def _aggregated(
        self,
        store: Kept | None,
        kind: str,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[[Any, Any, Any], Any],
        value: Serde[Any],
        *,
        fits: bool = False,
    ) -> KTable[Any, Any]:
        from penstock.core.dsl.ktable import KTable

        graph, windows = self._graph, self._windows
        name = graph.name(f"KSTREAM-{kind}", None)
        spec = self._store(store, f"{name}-store", value)
        graph.topology.add_state_store(spec)
        node = WindowedAggregate(
            name, (self._source(spec.name),), spec, windows, self._emit, initializer, aggregator, fits
        )
        return KTable(graph, graph.add(node), serdes.time_windowed(self._key, windows.size_ms), value)

    def _store(self, store: Kept | None, default: str, value: Serde[Any]) -> WindowSpec:
        kept, least = kept_as(store, default), self._windows.size_ms + self._windows.grace_ms
        retention = least if kept.retention_ms is None else kept.retention_ms
        if retention < least:
            raise TopologyError(
                f"store {kept.name!r}: a retention of {retention} ms would drop windows that can still change; give at "
                f"least size and grace together, {least} ms"
            )
        return WindowSpec(
            name=kept.name,
            key=self._key,
            value=value,
            timestamped=True,
            engine=kept.engine,
            changelog=kept.changelog,
            retention_ms=retention,
            size_ms=self._windows.size_ms,
            by_time=self._emit is EmitStrategy.ON_WINDOW_CLOSE,
        )
