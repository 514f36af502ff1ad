"""TimeWindowedKStream and SessionWindowedKStream: streams by key and window, ready to be aggregated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream.core.dsl.builtin_aggregations import Folding
from millstream.core.dsl.operators.aggregation import GroupedAggregation, Grouping
from millstream.core.dsl.operators.store_specs import (
    AnyTimeWindows,
    check_emit,
    open_store,
    session_store,
    window_store,
    window_word,
    windowed_key,
)
from millstream.core.model import serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.calendars import Windows
from millstream.core.model.record import K, V
from millstream.core.model.serdes import Serde
from millstream.core.model.windowed import Windowed
from millstream.core.model.windows import EmitStrategy, SessionWindows, SlidingWindows
from millstream.core.topology.folds import Fold
from millstream.core.topology.nodes import Materialised
from millstream.core.topology.stores import StoreLike, StoreOptions
from millstream.core.topology.window_nodes import (
    CalendarAggregate,
    SessionAggregate,
    SlidingAggregate,
    WindowedAggregate,
)

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream, KTable

A = TypeVar("A")
W = TypeVar("W", bound=AnyTimeWindows | SessionWindows)


class _WindowedKStream(Folding["Windowed[K]", V], Generic[K, V, W]):
    def __init__(
        self,
        grouping: Grouping,
        windows: W,
        emit: EmitStrategy,
        late: Callable[[KStream[K, V]], object] | None = None,
    ) -> None:
        check_emit(windows, emit)
        self._grouping = grouping
        self._windows = windows
        self._emit = emit
        self._late = late

    def _aggregated(
        self, aggregation: GroupedAggregation, store: StoreLike | None, name: str | None
    ) -> KTable[Windowed[K], Any]:
        grouping, graph, kind = self._grouping, self._grouping.graph, aggregation.kind
        operation = f"{window_word(self._windows)}-{aggregation.operation}"
        options = graph.store_options(store, lambda: graph.names.store(kind), grouping.path, operation, name)
        node = graph.name(kind, name)
        self._add(node, aggregation, options)
        graph.begin(node, options.name, name)
        graph.pass_late(node, (grouping.key, grouping.value), self._late)
        return graph.table(node, self._result_key, aggregation.value)

    @property
    @abstractmethod
    def _result_key(self) -> Serde[Windowed[Any]]: ...

    @abstractmethod
    def _add(self, name: str, aggregation: GroupedAggregation, options: StoreOptions) -> None: ...


@checked_methods
class TimeWindowedKStream(_WindowedKStream[K, V, AnyTimeWindows]):
    """Records by key and window. Returned by ``KGroupedStream.windowed_by``.

    The key of a result is ``Windowed(key, start, end)``; its timestamp is the largest timestamp of the window's records. Records without a
    key are dropped and counted, as is each window for which a record is too late. Null values are *not* dropped, unlike in aggregations
    without windows: ``count`` counts them, and functions receive None. Sliding windows drop null values, as do ``sum``, ``min``, ``max``
    and ``mean``.

    Source: ``org.apache.kafka.streams.kstream.TimeWindowedKStream``.
    """

    def count(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[Windowed[K], int]:
        """Count the records per key and window.

        Args:
            store: Name of the window store of the counts, or ``ms.stores.options(name, retention=...)``.
            name: Name of the node; without ``store``, also the first part of the store's name.

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

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        value: Serde[A] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records per key and window.

        Args:
            initializer: Creates the first aggregate of a window.
            aggregator: ``(key, value, aggregate) -> aggregate``; None deletes the window's entry.
            value: Serde of the aggregates; None uses the builder's default.
            store: As in :meth:`count`.
            name: As in :meth:`count`.

        Returns:
            A table from ``Windowed`` key to aggregate.

        Raises:
            TopologyError: As in :meth:`count`.

        Source: ``TimeWindowedKStream.aggregate``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> words = builder.stream("words").group_by_key().windowed_by(ms.TumblingWindows(1000, grace=0))
            >>> words.aggregate(str, lambda key, word, so_far: so_far + word, store="joined").to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp, word in ((0, "a"), (999, "b"), (1000, "c")):
            ...     driver.pipe("words", "k", word, timestamp)
            >>> [(record.key.start, record.value) for record in driver.read("out")]
            [(0, 'a'), (0, 'ab'), (1000, 'c')]
        """
        value = value or self._grouping.graph.default_value
        return self._aggregated(GroupedAggregation("aggregate", initializer, aggregator, value), store, name)

    @property
    def _result_key(self) -> Serde[Windowed[Any]]:
        return windowed_key(self._grouping.key, self._windows)

    def _add(self, name: str, aggregation: GroupedAggregation, options: StoreOptions) -> None:
        grouping, graph, windows, emit = self._grouping, self._grouping.graph, self._windows, self._emit
        spec = window_store(options, windows, emit, grouping.key, aggregation.value)
        parents = (grouping.source(spec.name),)
        functions, fold = (aggregation.initializer, aggregation.aggregator), aggregation.fold
        node: Materialised
        if isinstance(windows, Windows):
            node = CalendarAggregate(name, parents, spec, windows, emit, *functions, fold)
        elif isinstance(windows, SlidingWindows):
            opened = open_store(graph, options) if emit.at_close else None
            node = SlidingAggregate(name, parents, spec, windows, emit, opened, *functions)
        else:
            fits = aggregation.fits
            node = WindowedAggregate(name, parents, spec, windows, emit, *functions, fits, fold=fold)
        graph.add(node)


@checked_methods
class SessionWindowedKStream(_WindowedKStream[K, V, SessionWindows]):
    """Records by key and session. Returned by ``KGroupedStream.windowed_by``.

    The key of a result is ``Windowed(key, start, end)`` with the times of the session's first and last record; its timestamp is the end.
    When a session is extended or merged with others, null values delete the old sessions before the result of the new one. With results on
    window close, each session has a single result. Records without a key, and records that are late for their session, are dropped and
    counted. Only ``sum``, ``min``, ``max`` and ``mean`` drop null values.

    Source: ``org.apache.kafka.streams.kstream.SessionWindowedKStream``.
    """

    def count(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[Windowed[K], int]:
        """Count the records per key and session.

        Args:
            store: Name of the session store of the counts, or ``ms.stores.options(name, retention=...)``.
            name: Name of the node; without ``store``, also the first part of the store's name.

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

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        merger: Callable[[K, A, A], A],
        *,
        value: Serde[A] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records per key and session.

        Args:
            initializer: Creates the aggregate of a session, into which existing sessions are merged.
            aggregator: ``(key, value, aggregate) -> aggregate``; None deletes the session's entry.
            merger: ``(key, aggregate, aggregate of the next session) -> aggregate`` of both.
            value: Serde of the aggregates; None uses the builder's default.
            store: As in :meth:`count`.
            name: As in :meth:`count`.

        Returns:
            A table from ``Windowed`` key to aggregate.

        Raises:
            TopologyError: As in :meth:`count`.

        Source: ``SessionWindowedKStream.aggregate``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> words = builder.stream("words").group_by_key().windowed_by(ms.SessionWindows(30, grace=0))
            >>> joined = words.aggregate(str, lambda key, word, so_far: so_far + word, lambda key, a, b: a + b, store="joined")
            >>> joined.filter(lambda window, value: value).to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp, word in ((0, "a"), (30, "b"), (61, "c")):
            ...     driver.pipe("words", "k", word, timestamp)
            >>> [record.value for record in driver.read("out") if record.value]
            ['a', 'ab', 'c']
        """
        value = value or self._grouping.graph.default_value
        aggregation = GroupedAggregation("aggregate", initializer, aggregator, value, merger)
        return self._aggregated(aggregation, store, name)

    @property
    def _result_key(self) -> Serde[Windowed[Any]]:
        return serdes.session_windowed(self._grouping.key)

    def _add(self, name: str, aggregation: GroupedAggregation, options: StoreOptions) -> None:
        grouping, graph, windows, emit = self._grouping, self._grouping.graph, self._windows, self._emit
        spec = session_store(options, windows, emit, grouping.key, aggregation.value)
        opened = open_store(graph, options) if emit.at_close else None
        parents = (grouping.source(spec.name),)
        assert aggregation.merger is not None
        functions = aggregation.initializer, aggregation.aggregator, aggregation.merger
        graph.add(SessionAggregate(name, parents, spec, windows, emit, opened, *functions, aggregation.fold))
