"""CogroupedKStream: several grouped streams with the same keys, aggregated into one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

from millstream.core.dsl.graph import LateConsumer
from millstream.core.dsl.handle import WithPythonNames
from millstream.core.dsl.operators.aggregation import Grouping
from millstream.core.dsl.operators.store_specs import (
    AnyTimeWindows,
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
from millstream.core.model.windows import SessionWindows, SlidingWindows, TimeWindows, on_window_update
from millstream.core.topology.nodes import Aggregate, Cogroup, Materialised
from millstream.core.topology.stores import StoreLike, StoreOptions, StoreSpec
from millstream.core.topology.window_nodes import (
    CalendarAggregate,
    SessionAggregate,
    SlidingAggregate,
    WindowedAggregate,
)

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KGroupedStream, KTable

A = TypeVar("A")
W = TypeVar("W", bound=AnyTimeWindows | SessionWindows)


class CogroupedInput(NamedTuple):
    """A grouped stream of a cogroup.

    Attributes:
        unnamed: Whether it needs a repartition that has no name in the program.
    """

    grouping: Grouping
    aggregator: Callable[[Any, Any, Any], Any]
    unnamed: bool


MakeNode = Callable[[str, tuple[str, ...], Callable[[Any, Any, Any], Any], int], Materialised]
"""Maps name, parents, aggregator and number to the node of an input."""
_KIND: Final = "COGROUPKSTREAM-AGGREGATE"


class _Cogroup(WithPythonNames, Generic[K, A]):
    """Grouped streams that share an aggregation. The first stream determines the path and the serde of the keys."""

    def __init__(self, inputs: tuple[CogroupedInput, ...]) -> None:
        self._inputs = inputs
        self._graph = inputs[0].grouping.graph
        self._key = inputs[0].grouping.key

    def _options(self, store: StoreLike | None, operation: str, name: str | None) -> StoreOptions:
        graph, path = self._graph, self._inputs[0].grouping.path
        return graph.store_options(store, lambda: graph.names.store(_KIND), path, operation, name)

    def _add(
        self, store: StoreSpec, make: MakeNode, name: str | None, late: LateConsumer | None = None
    ) -> str:
        """Add the aggregations and their table, and return the node of the table."""
        graph = self._graph
        # The repartition of this input is named after the store. Repartitions of other inputs also have a number.
        unnamed = (number for number, each in enumerate(self._inputs) if each.unnamed)
        first = next(unnamed, 0) if graph.names.numbered else 0
        sources = [
            each.grouping.source(
                store.name if number == first else graph.names.part(store.name, f"-{number}")
            )
            for number, each in enumerate(self._inputs)
        ]
        nodes = [
            graph.add(
                make(
                    graph.name(_KIND, name and f"{name}-cogroup-agg-{number}"),
                    (source,),
                    each.aggregator,
                    number,
                )
            )
            for number, (source, each) in enumerate(zip(sources, self._inputs))
        ]
        last = graph.name("COGROUPKSTREAM-MERGE", name and f"{name}-cogroup-merge")
        graph.add(Cogroup(last, tuple(nodes), store))
        graph.names.begin(last, name or store.name)
        for node, each in zip(nodes, self._inputs):
            graph.begin(node, each.grouping.path)
            graph.pass_late(node, (self._key, each.grouping.value), late)
        return last


@checked_methods
class CogroupedKStream(_Cogroup[K, A]):
    """Several grouped streams that are aggregated into one aggregate per key. Returned by ``KGroupedStream.cogroup``.

    Records with a null key or a null value are dropped and counted. The inputs must have the same keys and are processed in one task, so
    their topics must have the same number of partitions.

    Source: ``org.apache.kafka.streams.kstream.CogroupedKStream`` (KIP-150).
    """

    def cogroup(
        self, grouped: KGroupedStream[K, V], aggregator: Callable[[K, V, A], A | None]
    ) -> CogroupedKStream[K, A]:
        """Add a grouped stream. For an example, see ``KGroupedStream.cogroup``.

        Args:
            grouped: The stream.
            aggregator: ``(key, value, aggregate) -> aggregate`` for the records of the stream; None deletes the key.

        Returns:
            A cogroup of all streams so far and this one.

        Raises:
            TopologyError: If the stream belongs to another builder.

        Source: ``CogroupedKStream.cogroup`` (KIP-150).
        """
        added = grouped._input(aggregator)
        self._graph.check_same(added.grouping.graph, "the streams of a cogroup")
        return CogroupedKStream((*self._inputs, added))

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        value: Serde[A] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Aggregate the records of all streams per key. For an example, see ``KGroupedStream.cogroup``.

        Args:
            initializer: Creates the first aggregate of a key.
            value: Serde of the aggregates; None uses the builder's default.
            store: Name of the store of the aggregates.
            name: Name of the table's node; without ``store``, also the first part of the store's name.

        Returns:
            A table from key to aggregate.

        Raises:
            TopologyError: If a name is in use.

        Source: ``CogroupedKStream.aggregate`` (KIP-150).
        """
        options = self._options(store, "cogroup", name)
        spec = self._graph.store(options, self._key, value or self._graph.default_value)
        node = self._add(
            spec,
            lambda node, parents, aggregator, _: Aggregate(node, parents, spec, initializer, aggregator),
            name,
        )
        return self._graph.table(node, self._key, spec.value)

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | Windows, *, late: LateConsumer | None = ...
    ) -> TimeWindowedCogroupedKStream[K, A]: ...
    @overload
    def windowed_by(
        self, windows: SessionWindows, *, late: LateConsumer | None = ...
    ) -> SessionWindowedCogroupedKStream[K, A]: ...
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows | Windows | SessionWindows,
        *,
        late: LateConsumer | None = None,
    ) -> TimeWindowedCogroupedKStream[K, A] | SessionWindowedCogroupedKStream[K, A]:
        """Divide the records of each key into windows. Each stream has its own stream time.

        Args:
            windows: As in ``KGroupedStream.windowed_by``. Results are emitted for each record. For one result per window, use
                ``suppress`` after the aggregation.
            late: Called once per stream, in the order in which the streams were added, with a stream of the records that arrived too
                late for a window or for their session, by the time of their stream. These records are unchanged, with the serdes of
                their stream.

        Returns:
            The cogroup by key and window or session, ready to be aggregated.

        Source: ``CogroupedKStream.windowedBy``. Kafka Streams has no counterpart of ``late``.

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
            return SessionWindowedCogroupedKStream(self._inputs, windows, late)
        return TimeWindowedCogroupedKStream(self._inputs, windows, late)


class _WindowedCogroup(_Cogroup[K, A], Generic[K, A, W]):
    def __init__(self, inputs: tuple[CogroupedInput, ...], windows: W, late: LateConsumer | None) -> None:
        super().__init__(inputs)
        self._windows = windows
        self._late = late


@checked_methods
class TimeWindowedCogroupedKStream(_WindowedCogroup[K, A, AnyTimeWindows]):
    """Several grouped streams by key and window. Returned by ``CogroupedKStream.windowed_by``.

    Source: ``org.apache.kafka.streams.kstream.TimeWindowedCogroupedKStream``.
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        value: Serde[A] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records of all streams per key and window. For an example, see :meth:`CogroupedKStream.windowed_by`.

        Args:
            initializer: Creates the first aggregate of a window.
            value: Serde of the aggregates; None uses the builder's default.
            store: Name of the window store, or ``ms.stores.options(name, retention=...)``.
            name: As in :meth:`CogroupedKStream.aggregate`.

        Returns:
            A table from ``Windowed`` key to aggregate.

        Raises:
            TopologyError: If the store's retention is shorter than size (twice the difference) and grace together.

        Source: ``TimeWindowedCogroupedKStream.aggregate`` (KIP-150).
        """
        windows, emit = self._windows, on_window_update
        options = self._options(store, f"{window_word(windows)}-cogroup", name)
        spec = window_store(options, windows, emit, self._key, value or self._graph.default_value)

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

        node = self._add(spec, make, name, self._late)
        return self._graph.table(node, windowed_key(self._key, windows), spec.value)


@checked_methods
class SessionWindowedCogroupedKStream(_WindowedCogroup[K, A, SessionWindows]):
    """Several grouped streams by key and session. Returned by ``CogroupedKStream.windowed_by``.

    Source: ``org.apache.kafka.streams.kstream.SessionWindowedCogroupedKStream``.
    """

    def aggregate(
        self,
        initializer: Callable[[], A],
        merger: Callable[[K, A, A], A],
        *,
        value: Serde[A] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the records of all streams per key and session. For an example, see :meth:`CogroupedKStream.windowed_by`.

        Args:
            initializer: Creates the aggregate of a session, into which existing sessions are merged.
            merger: ``(key, aggregate, aggregate of the next session) -> aggregate`` of both.
            value: Serde of the aggregates; None uses the builder's default.
            store: Name of the session store, or ``ms.stores.options(name, retention=...)``.
            name: As in :meth:`CogroupedKStream.aggregate`.

        Returns:
            A table from ``Windowed`` key to aggregate.

        Raises:
            TopologyError: If the store's retention is shorter than gap and grace together.

        Source: ``SessionWindowedCogroupedKStream.aggregate`` (KIP-150).
        """
        windows, emit = self._windows, on_window_update
        options = self._options(store, f"{window_word(windows)}-cogroup", name)
        spec = session_store(options, windows, emit, self._key, value or self._graph.default_value)

        def make(
            node: str, parents: tuple[str, ...], aggregator: Callable[[Any, Any, Any], Any], number: int
        ) -> Materialised:
            functions = initializer, aggregator, merger
            return SessionAggregate(node, parents, spec, windows, emit, None, *functions, input=number)

        node = self._add(spec, make, name, self._late)
        return self._graph.table(node, serdes.session_windowed(self._key), spec.value)
