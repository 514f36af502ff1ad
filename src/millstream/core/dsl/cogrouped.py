"""CogroupedKStream: several grouped streams with the same keys, waiting for the aggregation that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

from millstream.core.dsl.graph import Graph
from millstream.core.dsl.late import OfLate, with_late
from millstream.core.dsl.windowed import session_store, window_store, windowed_key, word_of
from millstream.core.model import serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.calendars import Windows
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.windowed import Windowed
from millstream.core.model.windows import SessionWindows, SlidingWindows, TimeWindows, on_window_update
from millstream.core.topology.nodes import Aggregate, Cogroup, Materialised
from millstream.core.topology.stores import Kept, StoreSpec
from millstream.core.topology.windowed import (
    CalendarAggregate,
    SessionAggregate,
    SlidingAggregate,
    WindowedAggregate,
)

if TYPE_CHECKING:
    from millstream.core.dsl.grouped import KGroupedStream
    from millstream.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
W = TypeVar("W")


class Input(NamedTuple):
    """A grouped stream of a cogroup.

    Attributes:
        source: Gives the node to aggregate behind for the name of a repartition.
        path: Its path.
        value: Serde of its values.
        aggregator: Key, value and aggregate to the new aggregate.
        unnamed: Whether it needs a repartition that was given no name.
    """

    source: Callable[[str], str]
    path: str
    value: Serde[Any]
    aggregator: Callable[[Any, Any, Any], Any]
    unnamed: bool


MakeNode = Callable[[str, tuple[str, ...], Callable[[Any, Any, Any], Any], int], Materialised]
"""Name, parents, aggregator and number to the node of one input."""
_KIND: Final = "COGROUPKSTREAM-AGGREGATE"


@checked_methods
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
        added = grouped._input(aggregator)
        return CogroupedKStream(self._graph, self._path, self._key, (*self._inputs, added))

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
            self._key,
        )

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | Windows, *, late: OfLate | None = ...
    ) -> TimeWindowedCogroupedKStream[K, A]: ...
    @overload
    def windowed_by(
        self, windows: SessionWindows, *, late: OfLate | None = ...
    ) -> SessionWindowedCogroupedKStream[K, A]: ...
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows | Windows | SessionWindows,
        *,
        late: OfLate | None = None,
    ) -> TimeWindowedCogroupedKStream[K, A] | SessionWindowedCogroupedKStream[K, A]:
        """Cut each key's records into windows of time; each stream has a stream time of its own there.

        Args:
            windows: As in ``KGroupedStream.windowed_by``. Results are given at every record; for one per window put ``suppress``
                behind the aggregation.
            late: Called for each stream, in the order in which they were added, with the stream of its records that came too
                late for a window of theirs, by the time of that stream, or for their session. Each comes as it was, with the
                serdes of its stream.

        Source: ``CogroupedKStream.windowedBy``. ``late`` has no counterpart there.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> seen, sold = (builder.stream(topic).group_by_key() for topic in ("seen", "sold"))
            >>> both = seen.cogroup(lambda key, value, so_far: so_far + "v").cogroup(sold, lambda k, v, so_far: so_far + "s")
            >>> windowed = both.windowed_by(ms.TumblingWindows(1000, grace=0), late=lambda late: late.to("late"))
            >>> _ = windowed.aggregate(str, store="both")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for topic, timestamp in (("seen", 0), ("sold", 1000), ("sold", 999)):
            ...     driver.pipe(topic, "tea", "x", timestamp)
            >>> [record.timestamp for record in driver.read("late")]
            [999]
        """
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(
                self._graph, self._path, self._key, self._inputs, windows, late
            )
        return TimeWindowedCogroupedKStream(self._graph, self._path, self._key, self._inputs, windows, late)


@checked_methods
class _WindowedCogroup(Generic[K, A, W]):
    """Several grouped streams with their windows."""

    def __init__(
        self,
        graph: Graph,
        path: str,
        key: Serde[Any],
        inputs: tuple[Input, ...],
        windows: W,
        late: OfLate | None,
    ) -> None:
        self._graph = graph
        self._path = path
        self._key = key
        self._inputs = inputs
        self._windows = windows
        self._late = late


@checked_methods
class TimeWindowedCogroupedKStream(_WindowedCogroup[K, A, "TimeWindows | SlidingWindows | Windows"]):
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
            store: Name of the window store, or ``ms.stores.options(name, retention=...)``.
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
            if isinstance(windows, Windows):
                return CalendarAggregate(
                    node, parents, spec, windows, emit, initializer, aggregator, input=number
                )
            if isinstance(windows, SlidingWindows):
                return SlidingAggregate(
                    node, parents, spec, windows, emit, None, initializer, aggregator, number
                )
            return WindowedAggregate(
                node, parents, spec, windows, emit, initializer, aggregator, shared=True, input=number
            )

        nodes = _Nodes(graph, self._inputs, name, spec, self._late)
        return nodes.table(make, self._key, windowed_key(self._key, windows))


@checked_methods
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
            store: Name of the session store, or ``ms.stores.options(name, retention=...)``.
            name: As in :meth:`CogroupedKStream.aggregate`.

        Raises:
            TopologyError: If the store's retention is shorter than gap and grace together.
        """
        graph, windows = self._graph, self._windows
        word = f"{word_of(windows)}-cogroup"
        kept = graph.kept_as(store, lambda: graph.names.store(_KIND), self._path, word, name)
        spec = session_store(kept, windows, self._key, value or graph.default_value, on_window_update)
        nodes = _Nodes(graph, self._inputs, name, spec, self._late)
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
            self._key,
            serdes.session_windowed(self._key),
        )


class _Nodes:
    """Puts the aggregations of a cogroup, and the table behind them, into the graph."""

    def __init__(
        self,
        graph: Graph,
        inputs: tuple[Input, ...],
        name: str | None,
        store: StoreSpec,
        late: OfLate | None = None,
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._name = name
        self._store = store
        self._late = late

    def table(self, make: MakeNode, of_records: Serde[Any], key: Serde[Any]) -> KTable[Any, Any]:
        """Add the nodes; give the table.

        Args:
            make: Makes the node of one input.
            of_records: Serde of the keys of the records.
            key: Serde of the keys of the table.
        """
        from millstream.core.dsl.ktable import KTable

        graph, store = self._graph, self._store
        graph.topology.add_state_store(store)
        name, first = self._name, self._first_topic()
        sources = [
            given.source(store.name if number == first else graph.names.part(store.name, f"-{number}"))
            for number, given in enumerate(self._inputs)
        ]
        parents = [
            graph.add(
                make(
                    graph.name(_KIND, name and f"{name}-cogroup-agg-{number}"),
                    (source,),
                    given.aggregator,
                    number,
                )
            )
            for number, (source, given) in enumerate(zip(sources, self._inputs))
        ]
        last = graph.name("COGROUPKSTREAM-MERGE", name and f"{name}-cogroup-merge")
        graph.add(Cogroup(last, tuple(parents), store))
        graph.names.begin(last, name or store.name)
        for parent, given in zip(parents, self._inputs):
            graph.begin(parent, given.path)
            with_late(graph, parent, of_records, given.value, self._late)
        return KTable(graph, last, key, store.value)

    def _first_topic(self) -> int:
        """Return the number of the input whose repartition is named by the store alone; the others have their numbers behind it."""
        if not self._graph.names.numbered:
            return 0
        return next((number for number, given in enumerate(self._inputs) if given.unnamed), 0)
