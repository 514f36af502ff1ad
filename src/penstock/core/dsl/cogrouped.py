"""CogroupedKStream: several grouped streams with the same keys, waiting for the aggregation that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from penstock.core.dsl.graph import Graph
from penstock.core.dsl.windowed import session_store, window_store, word_of
from penstock.core.model import serdes
from penstock.core.model.errors import TopologyError
from penstock.core.model.serdes import Serde
from penstock.core.model.windowed import Windowed
from penstock.core.model.windows import SessionWindows, SlidingWindows, TimeWindows, on_window_update
from penstock.core.plan.nodes import Aggregate, Cogroup, Materialised
from penstock.core.plan.specs import Kept, StoreSpec
from penstock.core.plan.windowed import SessionAggregate, SlidingAggregate, WindowedAggregate

if TYPE_CHECKING:
    from penstock.core.dsl.grouped import KGroupedStream
    from penstock.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
W = TypeVar("W")

Input = tuple[Callable[[str], str], Callable[[Any, Any, Any], Any]]
"""A grouped stream: gives the node to aggregate behind for the name of a repartition; and its aggregator."""
MakeNode = Callable[[str, tuple[str, ...], Callable[[Any, Any, Any], Any], int], Materialised]
"""Name, parents, aggregator and number to the node of one input."""
_KIND: Final = "COGROUPKSTREAM-AGGREGATE"


class CogroupedKStream(Generic[K, A]):
    """Several grouped streams whose records change one aggregate per key. Made by ``KGroupedStream.cogroup``.

    Records with a null key or a null value are left out and counted as dropped. The inputs need the same keys, and meet in
    one task, so their topics need the same number of partitions.

    Source: ``org.apache.kafka.streams.kstream.CogroupedKStream`` (KIP-150).
    """

    def __init__(self, graph: Graph, path: str, key: Serde[Any], inputs: tuple[Input, ...]) -> None:
        self._graph = graph
        self._path = path
        self._key = key
        self._inputs = inputs

    def cogroup(
        self, grouped: KGroupedStream[K, V], aggregator: Callable[[K, V, A], A | None]
    ) -> CogroupedKStream[K, A]:
        """Add a grouped stream.

        Args:
            grouped: The stream.
            aggregator: ``(key, value, aggregate so far) -> aggregate`` for its records; None deletes the key.

        Raises:
            TopologyError: If the stream belongs to another builder.
        """
        if grouped._graph is not self._graph:
            raise TopologyError("the streams of a cogroup come from different builders; make both with one")
        inputs = (*self._inputs, (grouped._source, aggregator))
        return CogroupedKStream(self._graph, self._path, self._key, inputs)

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        value: Serde[A] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Aggregate the records of all streams per key.

        Args:
            initializer: Makes the aggregate of a new key.
            value: Serde of the aggregates; None is the builder's default.
            store: Name of the store of the aggregates.
            name: Name of the node of the table, and without ``store`` first part of that of the store.
        """
        graph = self._graph
        kept = graph.kept_as(store, lambda: graph.names.store(_KIND), self._path, "cogroup", name)
        spec = graph.store(kept, self._key, value or graph.default_value)
        nodes = _Nodes(graph, self._inputs, name, spec)
        return nodes.table(
            lambda node, parents, aggregator, _: Aggregate(node, parents, spec, initializer, aggregator),
            self._key,
        )

    @overload
    def windowed_by(self, windows: TimeWindows | SlidingWindows) -> TimeWindowedCogroupedKStream[K, A]: ...
    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, A]: ...
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | SessionWindows
    ) -> TimeWindowedCogroupedKStream[K, A] | SessionWindowedCogroupedKStream[K, A]:
        """Cut each key's records into windows of time; each stream has a stream time of its own there.

        Args:
            windows: ``TumblingWindows``, ``HoppingWindows``, ``SlidingWindows`` or ``SessionWindows``. Results are given at every
                record; for one per window put ``suppress`` behind the aggregation.
        """
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._graph, self._path, self._key, self._inputs, windows)
        return TimeWindowedCogroupedKStream(self._graph, self._path, self._key, self._inputs, windows)


class _WindowedCogroup(Generic[K, A, W]):
    """Several grouped streams with their windows."""

    def __init__(
        self, graph: Graph, path: str, key: Serde[Any], inputs: tuple[Input, ...], windows: W
    ) -> None:
        self._graph = graph
        self._path = path
        self._key = key
        self._inputs = inputs
        self._windows = windows


class TimeWindowedCogroupedKStream(_WindowedCogroup[K, A, "TimeWindows | SlidingWindows"]):
    """Several grouped streams by key and window. Made by ``CogroupedKStream.windowed_by``.

    Source: ``org.apache.kafka.streams.kstream.TimeWindowedCogroupedKStream``.
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        value: Serde[A] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records of all streams per key and window.

        Args:
            initializer: Makes the aggregate of a window.
            value: Serde of the aggregates; None is the builder's default.
            store: Name of the window store, or ``ps.stores.options(name, retention=...)``.
            name: As in :meth:`CogroupedKStream.aggregate`.

        Raises:
            TopologyError: If the store's retention is shorter than size (twice the difference) and grace together.
        """
        graph, windows, emit = self._graph, self._windows, on_window_update
        word = f"{word_of(windows)}-cogroup"
        kept = graph.kept_as(store, lambda: graph.names.store(_KIND), self._path, word, name)
        spec = window_store(kept, windows, self._key, value or graph.default_value, emit)

        def make(
            node: str, parents: tuple[str, ...], aggregator: Callable[[Any, Any, Any], Any], number: int
        ) -> Materialised:
            if isinstance(windows, SlidingWindows):
                return SlidingAggregate(
                    node, parents, spec, windows, emit, None, initializer, aggregator, number
                )
            return WindowedAggregate(
                node, parents, spec, windows, emit, initializer, aggregator, shared=True, input=number
            )

        nodes = _Nodes(graph, self._inputs, name, spec)
        return nodes.table(make, serdes.time_windowed(self._key, spec.size_ms))


class SessionWindowedCogroupedKStream(_WindowedCogroup[K, A, SessionWindows]):
    """Several grouped streams by key and session. Made by ``CogroupedKStream.windowed_by``.

    Source: ``org.apache.kafka.streams.kstream.SessionWindowedCogroupedKStream``.
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        merger: Callable[[K, A, A], A],
        *,
        value: Serde[A] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records of all streams per key and session.

        Args:
            initializer: Makes the aggregate of a session; those that a record joins are merged onto it.
            merger: ``(key, aggregate, aggregate of the next session) -> aggregate`` of both.
            value: Serde of the aggregates; None is the builder's default.
            store: Name of the session store, or ``ps.stores.options(name, retention=...)``.
            name: As in :meth:`CogroupedKStream.aggregate`.

        Raises:
            TopologyError: If the store's retention is shorter than gap and grace together.
        """
        graph, windows = self._graph, self._windows
        word = f"{word_of(windows)}-cogroup"
        kept = graph.kept_as(store, lambda: graph.names.store(_KIND), self._path, word, name)
        spec = session_store(kept, windows, self._key, value or graph.default_value, on_window_update)
        nodes = _Nodes(graph, self._inputs, name, spec)
        return nodes.table(
            lambda node, parents, aggregator, number: SessionAggregate(
                node,
                parents,
                spec,
                windows,
                on_window_update,
                None,
                initializer,
                aggregator,
                merger,
                input=number,
            ),
            serdes.session_windowed(self._key),
        )


class _Nodes:
    """Puts the aggregations of a cogroup, and the table behind them, into the graph."""

    def __init__(self, graph: Graph, inputs: tuple[Input, ...], name: str | None, store: StoreSpec) -> None:
        self._graph = graph
        self._inputs = inputs
        self._name = name
        self._store = store

    def table(self, make: MakeNode, key: Serde[Any]) -> KTable[Any, Any]:
        """Add the nodes; give the table."""
        from penstock.core.dsl.ktable import KTable

        graph, store = self._graph, self._store
        graph.topology.add_state_store(store)
        sources = [
            source(graph.names.part(store.name, f"-{number}") if number else store.name)
            for number, (source, _) in enumerate(self._inputs)
        ]
        parents = [
            graph.add(make(graph.name(_KIND), (source,), aggregator, number))
            for number, (source, (_, aggregator)) in enumerate(zip(sources, self._inputs))
        ]
        last = graph.name("COGROUPKSTREAM-MERGE", self._name)
        graph.add(Cogroup(last, tuple(parents), store))
        graph.begin(last, store.name, self._name)
        return KTable(graph, last, key, store.value)
