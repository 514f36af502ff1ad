"""KGroupedStream: a stream by key, waiting for its aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from millstream.core.dsl.aggregators import combining, kind_of
from millstream.core.dsl.cogrouped import CogroupedKStream, Input
from millstream.core.dsl.folding import Folding
from millstream.core.dsl.graph import Graph
from millstream.core.dsl.windowed import SessionWindowedKStream, TimeWindowedKStream
from millstream.core.model.arguments import checked_methods
from millstream.core.model.calendars import Windows
from millstream.core.model.serdes import Serde
from millstream.core.model.windows import (
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    on_window_update,
)
from millstream.core.topology import nodes
from millstream.core.topology.folds import RECIPES, Fold, fits_always, kept_with
from millstream.core.topology.stores import Kept

if TYPE_CHECKING:
    from millstream.core.dsl.kstream import KStream
    from millstream.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


@checked_methods
class KGroupedStream(Folding[K, V], Generic[K, V]):
    """Records by key. Made by ``KStream.group_by`` and ``group_by_key``.

    Every aggregation leaves out records with a null key or a null value, and counts them as dropped. The timestamp of a
    result is the larger one of the record's and of the aggregate so far.

    Source: ``org.apache.kafka.streams.kstream.KGroupedStream``.
    """

    def __init__(
        self,
        graph: Graph,
        node: str,
        key: Serde[Any],
        value: Serde[Any],
        *,
        repartition: bool,
        name: str | None,
    ) -> None:
        self._graph = graph
        self._node = node
        self._key = key
        self._value = value
        self._rekeyed = repartition
        self._repartitioned: str | None = None
        self._name = name
        self._path = name or graph.path(node, rekeyed=repartition)

    def count(self, *, store: Kept | None = None, name: str | None = None) -> KTable[K, int]:
        """Count the records per key.

        Args:
            store: Name of the store of the counts; give one, so that no edit of the program loses them.
            name: Name of the node, and without ``store`` first part of that of the store.

        Returns:
            A table from key to count (64 bits).
        """
        return self._folded(store, name, Fold.COUNT)

    def reduce(
        self, reducer: Callable[[V, V], V | None], *, store: Kept | None = None, name: str | None = None
    ) -> KTable[K, V]:
        """Combine the values per key; the first value of a key is taken as it is.

        Args:
            reducer: ``(value so far, new value) -> value``; None deletes the key.
            store: Name of the store of the results.
            name: As in :meth:`count`.
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
    ) -> KTable[K, A]:
        """Aggregate the records per key.

        Args:
            initializer: Makes the aggregate of a new key.
            aggregator: ``(key, value, aggregate so far) -> aggregate``; None deletes the key.
            value: Serde of the aggregates; None is the builder's default.
            store: Name of the store of the aggregates.
            name: As in :meth:`count`.
        """
        return self._aggregated(
            "aggregate", store, name, initializer, aggregator, value or self._graph.default_value
        )

    def cogroup(self, aggregator: Callable[[K, V, A], A | None]) -> CogroupedKStream[K, A]:
        """Begin an aggregation that several grouped streams share.

        Args:
            aggregator: ``(key, value, aggregate so far) -> aggregate`` for the records of this stream; None deletes the key.

        Returns:
            What other streams join with ``cogroup(grouped, aggregator)``, and ``aggregate`` ends.

        Source: ``KGroupedStream.cogroup``; KIP-150.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> number = ms.serdes.int64
            >>> paid, billed = (builder.stream(topic, value=number).group_by_key() for topic in ("paid", "billed"))
            >>> balance = paid.cogroup(lambda key, value, so_far: so_far + value)
            >>> balance = balance.cogroup(billed, lambda key, value, so_far: so_far - value)
            >>> balance.aggregate(int, value=number, store="balance").to_stream().to("balances")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for topic, amount in (("billed", 7), ("paid", 5), ("paid", 2)):
            ...     driver.pipe(topic, "ann", amount)
            >>> [record.value for record in driver.read("balances")]
            [-7, -2, 0]
        """
        return CogroupedKStream(self._graph, self._path, self._key, (self._input(aggregator),))

    def _input(self, aggregator: Callable[[K, V, A], A | None]) -> Input:
        """Return this stream as one of those of a cogroup."""
        unnamed = self._rekeyed and self._repartitioned is None and self._name is None
        return Input(self._source, self._path, self._value, aggregator, unnamed)

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows | Windows,
        *,
        emit: EmitStrategy = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
    ) -> TimeWindowedKStream[K, V]: ...
    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
        *,
        emit: EmitStrategy = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
    ) -> SessionWindowedKStream[K, V]: ...
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows | Windows | SessionWindows,
        *,
        emit: EmitStrategy = on_window_update,
        late: Callable[[KStream[K, V]], object] | None = None,
    ) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V]:
        """Cut each key's records into windows of time.

        Args:
            windows: ``TumblingWindows``, ``HoppingWindows``, ``SlidingWindows``, ``SessionWindows`` or ``UnlimitedWindows``; or windows
                of your own, of a class derived from ``ms.Windows``.
            emit: ``on_window_update`` gives a result at every record, ``on_window_close`` one per window when it closes;
                ``EmitStrategy.on_window_close(close_idle_after=...)`` also when nothing arrives for so long.
            late: Called with the stream of the records that came too late for a window of theirs, or for their session, to
                send them somewhere. They are counted as dropped all the same, and come once each, however many windows they
                were late for. Called for each aggregation that is made.

        Returns:
            The stream by key and window, to be aggregated.

        Raises:
            TopologyError: If results are asked for at the close of unlimited windows.

        Source: ``KGroupedStream.windowedBy``; KIP-825 for ``emit``. ``late`` has no counterpart there.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> clicks = builder.stream("clicks").group_by_key()
            >>> windows = ms.TumblingWindows(60_000, grace=0)
            >>> counts = clicks.windowed_by(windows, late=lambda late: late.to("late")).count(store="counts")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp in (0, 60_000, 59_999):
            ...     driver.pipe("clicks", "ann", "x", timestamp)
            >>> [(r.key, r.value, r.timestamp) for r in driver.read("late")]
            [('ann', 'x', 59999)]
        """
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(
                self._graph, self._path, self._source, self._key, self._value, windows, emit, late
            )
        return TimeWindowedKStream(
            self._graph, self._path, self._source, self._key, self._value, windows, emit, late
        )

    def _folded(self, store: Kept | None, name: str | None, fold: Fold) -> KTable[K, Any]:
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

        graph, kind = self._graph, kind_of(initializer)
        kept = graph.kept_as(store, lambda: graph.names.store(kind), self._path, word, name)
        node = graph.name(kind, name)
        spec = graph.add_store(kept, self._key, value)
        graph.add(
            nodes.Aggregate(
                node, (self._source(spec.name),), spec, initializer, aggregator, fits_always(fold), fold
            )
        )
        graph.begin(node, spec.name, name)
        return KTable(graph, node, self._key, value)

    def _source(self, store: str) -> str:
        """Give the node to aggregate behind; the repartition is made once, however many aggregations there are."""
        if not self._rekeyed:
            return self._node
        if self._repartitioned is None:
            self._repartitioned = self._graph.repartition(
                self._node, self._name or store, self._key, self._value, drop_null_keys=True
            )
        else:
            self._graph.count_repartition()  # Kafka Streams makes one for each
        return self._repartitioned
