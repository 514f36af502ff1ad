"""TimeWindowedKStream and SessionWindowedKStream: a stream by key and window, waiting for its aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream.core.dsl.aggregators import combining, kind_of, merging
from millstream.core.dsl.folding import Folding
from millstream.core.dsl.graph import Graph
from millstream.core.dsl.late import with_late
from millstream.core.model import serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.calendars import NO_END, UnlimitedWindows, Windows
from millstream.core.model.durations import millis
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.windowed import Windowed
from millstream.core.model.windows import EmitStrategy, SessionWindows, SlidingWindows, TimeWindows
from millstream.core.topology.folds import RECIPES, Fold, fits_always, kept_with
from millstream.core.topology.nodes import Materialised
from millstream.core.topology.stores import Kept, KeyValueSpec, SessionSpec, StoreOptions, WindowSpec
from millstream.core.topology.windowed import (
    CalendarAggregate,
    SessionAggregate,
    SlidingAggregate,
    WindowedAggregate,
)

if TYPE_CHECKING:
    from millstream.core.dsl.kstream import KStream
    from millstream.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
W = TypeVar("W")


@checked_methods
class _WindowedKStream(Generic[K, V, W]):
    """A grouped stream with its windows."""

    def __init__(
        self,
        graph: Graph,
        path: str,
        source: Callable[[str], str],
        key: Serde[Any],
        value: Serde[Any],
        windows: W,
        emit: EmitStrategy,
        late: Callable[[KStream[K, V]], object] | None = None,
    ) -> None:
        self._graph = graph
        self._path = path
        self._source = source
        self._key = key
        self._value = value
        self._windows = windows
        self._emit = emit
        self._late = late
        check_emit(windows, emit)


@checked_methods
class TimeWindowedKStream(
    _WindowedKStream[K, V, "TimeWindows | SlidingWindows | Windows"], Folding["Windowed[K]", V]
):
    """Records by key and window. Made by ``KGroupedStream.windowed_by``.

    A result's key is ``Windowed(key, start, end)``, its timestamp the largest one of the window's records. Records without a
    key are left out and counted as dropped, and so is each window of a record for which it comes too late. Null values are
    *not* left out, other than in aggregations without windows: ``count`` counts them, and functions get them as None. With
    sliding windows, and by ``sum``, ``min``, ``max`` and ``mean``, they are left out.

    Source: ``org.apache.kafka.streams.kstream.TimeWindowedKStream``.
    """

    def count(self, *, store: Kept | None = None, name: str | None = None) -> KTable[Windowed[K], int]:
        """Count the records per key and window.

        Args:
            store: Name of the window store of the counts, or ``ms.stores.options(name, retention=...)``.
            name: Name of the node, and without ``store`` first part of that of the store.

        Returns:
            A table from key and window to count (64 bits).

        Raises:
            TopologyError: If the store's retention is shorter than size (twice the difference) and grace together.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> clicks = builder.stream("clicks").group_by_key()
            >>> per_minute = clicks.windowed_by(ms.TumblingWindows(60_000, grace=5_000)).count(store="per-minute")
            >>> per_minute.to_stream(lambda window, _: window.key).to("counts", value=ms.serdes.int64)
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp in (0, 59_999, 60_000):
            ...     driver.pipe("clicks", "ann", "x", timestamp)
            >>> [(r.key, r.value) for r in driver.read("counts")]
            [('ann', 1), ('ann', 2), ('ann', 1)]
        """
        return self._folded(store, name, Fold.COUNT)

    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        *,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values per key and window; the first value of a window is taken as it is.

        Args:
            reducer: ``(value so far, new value) -> value``; None deletes the window's entry.
            store: As in :meth:`count`.
            name: As in :meth:`count`.

        Raises:
            TopologyError: As in :meth:`count`.
        """
        return self._aggregated("reduce", store, name, None, combining(reducer), self._value)

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        value: Serde[A] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records per key and window.

        Args:
            initializer: Makes the aggregate of a window.
            aggregator: ``(key, value, aggregate so far) -> aggregate``; None deletes the window's entry.
            value: Serde of the aggregates; None is the builder's default.
            store: As in :meth:`count`.
            name: As in :meth:`count`.

        Raises:
            TopologyError: As in :meth:`count`.
        """
        return self._aggregated(
            "aggregate", store, name, initializer, aggregator, value or self._graph.default_value
        )

    def _folded(self, store: Kept | None, name: str | None, fold: Fold) -> KTable[Windowed[K], Any]:
        recipe, value = RECIPES[fold], kept_with(fold, self._value)
        return self._aggregated(
            fold.value, store, name, recipe.initializer, recipe.aggregator, value, fold=fold
        )

    def _aggregated(
        self,
        word: str,
        store: Kept | None,
        name: str | None,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[[Any, Any, Any], Any],
        value: Serde[Any],
        *,
        fold: Fold | None = None,
    ) -> KTable[Any, Any]:
        from millstream.core.dsl.ktable import KTable

        graph, windows, emit, kind = self._graph, self._windows, self._emit, kind_of(initializer)
        word = f"{word_of(windows)}-{word}"
        kept = graph.kept_as(store, lambda: graph.names.store(kind), self._path, word, name)
        made = graph.name(kind, name)
        spec = window_store(kept, windows, self._key, value, emit)
        graph.topology.add_state_store(spec)
        parents = (self._source(spec.name),)
        node: Materialised
        if isinstance(windows, Windows):
            node = CalendarAggregate(made, parents, spec, windows, emit, initializer, aggregator, fold)
        elif isinstance(windows, SlidingWindows):
            opened = _open(graph, kept) if emit.at_close else None
            node = SlidingAggregate(made, parents, spec, windows, emit, opened, initializer, aggregator)
        else:
            fits = fits_always(fold)
            node = WindowedAggregate(
                made, parents, spec, windows, emit, initializer, aggregator, fits, fold=fold
            )
        graph.add(node)
        graph.begin(made, spec.name, name)
        with_late(graph, made, self._key, self._value, self._late)
        return KTable(graph, made, windowed_key(self._key, windows), value)


@checked_methods
class SessionWindowedKStream(_WindowedKStream[K, V, SessionWindows], Folding["Windowed[K]", V]):
    """Records by key and session. Made by ``KGroupedStream.windowed_by``.

    A result's key is ``Windowed(key, start, end)`` with the times of the session's first and last record, its timestamp is
    the end. When a session grows or several become one, the old ones are deleted, which gives null values, then the new
    one follows; with results at the close of sessions there is only one for each, when it has closed. Records without a key, and records late for their session, are left out and counted as dropped; null values
    are not left out, but by ``sum``, ``min``, ``max`` and ``mean``.

    Source: ``org.apache.kafka.streams.kstream.SessionWindowedKStream``.
    """

    def count(self, *, store: Kept | None = None, name: str | None = None) -> KTable[Windowed[K], int]:
        """Count the records per key and session.

        Args:
            store: Name of the session store of the counts, or ``ms.stores.options(name, retention=...)``.
            name: Name of the node, and without ``store`` first part of that of the store.

        Returns:
            A table from key and session to count (64 bits).

        Raises:
            TopologyError: If the store's retention is shorter than gap and grace together.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> clicks = builder.stream("clicks").group_by_key()
            >>> visits = clicks.windowed_by(ms.SessionWindows(30, grace=0)).count(store="visits").to_stream()
            >>> visits.to("visits")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp in (100, 130, 161):
            ...     driver.pipe("clicks", "ann", "x", timestamp)
            >>> [(r.key.start, r.key.end, r.value) for r in driver.read("visits")]
            [(100, 100, 1), (100, 100, None), (100, 130, 2), (161, 161, 1)]
        """
        return self._folded(store, name, Fold.COUNT)

    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        *,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values per key and session; the first value of a session is taken as it is.

        Args:
            reducer: ``(value so far, new value) -> value``, also of two sessions that become one; None deletes.
            store: As in :meth:`count`.
            name: As in :meth:`count`.

        Raises:
            TopologyError: As in :meth:`count`.
        """
        return self._aggregated(
            "reduce", store, name, None, combining(reducer), merging(reducer), self._value
        )

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        merger: Callable[[K, A, A], A],
        *,
        value: Serde[A] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records per key and session.

        Args:
            initializer: Makes the aggregate of a session; those that a record joins are merged onto it.
            aggregator: ``(key, value, aggregate so far) -> aggregate``; None deletes the session's entry.
            merger: ``(key, aggregate, aggregate of the next session) -> aggregate`` of both.
            value: Serde of the aggregates; None is the builder's default.
            store: As in :meth:`count`.
            name: As in :meth:`count`.

        Raises:
            TopologyError: As in :meth:`count`.
        """
        return self._aggregated(
            "aggregate", store, name, initializer, aggregator, merger, value or self._graph.default_value
        )

    def _folded(self, store: Kept | None, name: str | None, fold: Fold) -> KTable[Windowed[K], Any]:
        recipe, value = RECIPES[fold], kept_with(fold, self._value)
        return self._aggregated(
            fold.value, store, name, recipe.initializer, recipe.aggregator, recipe.merger, value, fold=fold
        )

    def _aggregated(
        self,
        word: str,
        store: Kept | None,
        name: str | None,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        value: Serde[Any],
        *,
        fold: Fold | None = None,
    ) -> KTable[Any, Any]:
        from millstream.core.dsl.ktable import KTable

        graph, kind, word = self._graph, kind_of(initializer), f"{word_of(self._windows)}-{word}"
        kept = graph.kept_as(store, lambda: graph.names.store(kind), self._path, word, name)
        made = graph.name(kind, name)
        spec = session_store(kept, self._windows, self._key, value, self._emit)
        graph.topology.add_state_store(spec)
        opened = _open(graph, kept) if self._emit.at_close else None
        source = self._source(spec.name)
        node = SessionAggregate(
            made, (source,), spec, self._windows, self._emit, opened, initializer, aggregator, merger, fold
        )
        graph.add(node)
        graph.begin(made, spec.name, name)
        with_late(graph, made, self._key, self._value, self._late)
        return KTable(graph, made, serdes.session_windowed(self._key), value)


def word_of(windows: TimeWindows | SlidingWindows | Windows | SessionWindows) -> str:
    """Give what the path of an aggregation calls its windows."""
    if isinstance(windows, (TimeWindows, Windows)):
        return "windowed"
    return "sliding" if isinstance(windows, SlidingWindows) else "session"


def windowed_key(key: Serde[Any], windows: TimeWindows | SlidingWindows | Windows) -> Serde[Windowed[Any]]:
    """Give the serde of the keys of results by window."""
    if isinstance(windows, Windows):
        return serdes.time_windowed(key, windows)
    return serdes.time_windowed(
        key, windows.difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
    )


def check_emit(windows: object, emit: EmitStrategy) -> None:
    """Refuse results at the close of a window that never closes.

    Raises:
        TopologyError: If they are asked for.
    """
    if isinstance(windows, UnlimitedWindows) and emit.at_close:
        raise TopologyError(
            "an unlimited window never closes, so emit=ms.on_window_close would never give a result; leave it out"
        )


def window_store(
    kept: StoreOptions,
    windows: TimeWindows | SlidingWindows | Windows,
    key: Serde[Any],
    value: Serde[Any],
    emit: EmitStrategy,
) -> WindowSpec:
    """Give the store of the aggregates per key and window.

    Raises:
        TopologyError: If it is to keep them for a shorter time than they can change.
    """
    if isinstance(windows, SlidingWindows):
        size = windows.difference_ms
        retention = _retention(kept, 2 * size + windows.grace_ms, "twice the difference")
    else:
        size = windows.size_ms
        retention = _retention(kept, min(size + windows.grace_ms, NO_END), "size")
    if emit.loses:
        retention += 1  # the time-ordered store of Kafka Streams still shows a start that lies the whole retention back
    return WindowSpec(
        name=kept.name,
        key=key,
        value=value,
        timestamped=True,
        **kept.storage,
        cache=kept.cache,
        retention=retention,
        size=size,
        windows=windows if isinstance(windows, Windows) else None,
        order="time" if emit.at_close and not isinstance(windows, SlidingWindows) else "key",
        with_open=emit.at_close and isinstance(windows, SlidingWindows),
    )


def session_store(
    kept: StoreOptions, windows: SessionWindows, key: Serde[Any], value: Serde[Any], emit: EmitStrategy
) -> SessionSpec:
    """Give the store of the aggregates per key and session.

    Raises:
        TopologyError: If it is to keep them for a shorter time than they can change.
    """
    return SessionSpec(
        name=kept.name,
        key=key,
        value=value,
        **kept.storage,
        cache=kept.cache,
        retention=_retention(kept, windows.gap_ms + windows.grace_ms, "gap"),
        with_open=emit.at_close,
    )


def _open(graph: Graph, kept: StoreOptions) -> KeyValueSpec:
    """Add the store of the windows or sessions that have not closed."""
    spec = KeyValueSpec(
        name=graph.names.part(kept.name, "-open"),
        key=serdes.bytes,
        value=serdes.bytes,
        **kept.storage,
    )
    graph.topology.add_state_store(spec)
    return spec


def _retention(kept: StoreOptions, least: int, length: str) -> int:
    """Give how long a store keeps windows; not less than they can change."""
    retention = least if kept.retention is None else millis(kept.retention)
    if retention < least:
        raise TopologyError(
            f"store {kept.name!r}: a retention of {retention} ms would drop windows that can still change; give at "
            f"least {length} and grace together, {least} ms"
        )
    return retention
