"""KGroupedStream: a stream grouped by key, ready to be aggregated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from millstream.core.dsl.builtin_aggregations import Folding
from millstream.core.dsl.cogrouped import CogroupedInput, CogroupedKStream
from millstream.core.dsl.operators.aggregation import GroupedAggregation, Grouping
from millstream.core.dsl.windowed_streams import SessionWindowedKStream, TimeWindowedKStream
from millstream.core.model.arguments import checked_methods
from millstream.core.model.calendars import Windows
from millstream.core.model.record import K, V
from millstream.core.model.serdes import Serde
from millstream.core.model.windows import (
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    on_window_update,
)
from millstream.core.topology import nodes
from millstream.core.topology.folds import Fold
from millstream.core.topology.stores import StoreLike

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream, KTable

A = TypeVar("A")


@checked_methods
class KGroupedStream(Folding[K, V], Generic[K, V]):
    """Records grouped by key. Returned by ``KStream.group_by`` and ``group_by_key``.

    Aggregations drop and count records with a null key or a null value. The timestamp of a result is the larger one of the timestamps of
    the record and of the previous aggregate.

    Source: ``org.apache.kafka.streams.kstream.KGroupedStream``.
    """

    advice_if_refused: ClassVar[str] = (
        "; aggregate a grouped stream first, for example with count() or reduce()"
    )

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping

    def count(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[K, int]:
        """Count the records per key.

        Args:
            store: Name of the store of the counts. Without a name, an edit of the program may lose them.
            name: Name of the node; without ``store``, also the first part of the store's name.

        Returns:
            A table from key to count (64 bits).

        Source: ``KGroupedStream.count``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for key in ("a", "b", "a"):
            ...     driver.pipe("in", key, "x")
            >>> [(record.key, record.value) for record in driver.read("out")]
            [('a', 1), ('b', 1), ('a', 2)]
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
    ) -> KTable[K, A]:
        """Aggregate the records per key.

        Args:
            initializer: Creates the first aggregate of a key.
            aggregator: ``(key, value, aggregate) -> aggregate``; None deletes the key.
            value: Serde of the aggregates; None uses the builder's default.
            store: Name of the store of the aggregates.
            name: As in :meth:`count`.

        Returns:
            A table from key to aggregate.

        Source: ``KGroupedStream.aggregate``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> words = builder.stream("words").group_by_key()
            >>> words.aggregate(str, lambda key, word, line: f"{line} {word}".strip(), store="lines").to_stream().to("lines")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for word in ("to", "be"):
            ...     driver.pipe("words", "1", word)
            >>> [record.value for record in driver.read("lines")]
            ['to', 'to be']
        """
        value = value or self._grouping.graph.default_value
        return self._aggregated(GroupedAggregation("aggregate", initializer, aggregator, value), store, name)

    def cogroup(self, aggregator: Callable[[K, V, A], A | None]) -> CogroupedKStream[K, A]:
        """Begin an aggregation that several grouped streams share.

        Args:
            aggregator: ``(key, value, aggregate) -> aggregate`` for the records of this stream; None deletes the key.

        Returns:
            The cogroup. Its method ``cogroup(grouped, aggregator)`` adds other streams, and ``aggregate`` completes it.

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
        return CogroupedKStream((self._input(aggregator),))

    def _input(self, aggregator: Callable[[K, V, A], A | None]) -> CogroupedInput:
        return CogroupedInput(self._grouping, aggregator, self._grouping.needs_name)

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
        """Divide the records of each key into windows.

        Args:
            windows: ``TumblingWindows``, ``HoppingWindows``, ``SlidingWindows``, ``SessionWindows`` or ``UnlimitedWindows``, or
                user-defined windows, of a class derived from ``ms.Windows``.
            emit: ``on_window_update`` emits a result for each record, ``on_window_close`` one per window when it closes.
                ``EmitStrategy.on_window_close(close_idle_after=...)`` also closes windows if no record arrives for that time.
            late: Called, for each aggregation, with a stream of the records that arrived too late for a window or for their
                session. A late record appears in the stream once, however many windows it missed, and is also counted as dropped.

        Returns:
            The stream by key and window, ready to be aggregated.

        Raises:
            TopologyError: If the windows are unlimited and results are to be emitted on window close; such windows never close.

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
            return SessionWindowedKStream(self._grouping, windows, emit, late)
        return TimeWindowedKStream(self._grouping, windows, emit, late)

    def _aggregated(
        self, aggregation: GroupedAggregation, store: StoreLike | None, name: str | None
    ) -> KTable[Any, Any]:
        grouping, graph, kind = self._grouping, self._grouping.graph, aggregation.kind
        options = graph.store_options(
            store, lambda: graph.names.store(kind), grouping.path, aggregation.operation, name
        )
        node = graph.name(kind, name)
        spec = graph.store(options, grouping.key, aggregation.value)
        parents = (grouping.source(spec.name),)
        initializer, aggregator = aggregation.initializer, aggregation.aggregator
        graph.add(
            nodes.Aggregate(node, parents, spec, initializer, aggregator, aggregation.fits, aggregation.fold)
        )
        graph.begin(node, spec.name, name)
        return graph.table(node, grouping.key, aggregation.value)
