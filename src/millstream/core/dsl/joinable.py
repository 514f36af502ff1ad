"""The joins of a stream: with tables, global tables and other streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from millstream.core.dsl.global_table import GlobalKTable
from millstream.core.dsl.handle import StreamHandle
from millstream.core.dsl.join_windows import JoinWindows
from millstream.core.dsl.operators import joining
from millstream.core.dsl.operators.join_options import JoinOptions, WithStream, WithTable, check_options
from millstream.core.dsl.operators.joining import JoinFunction
from millstream.core.model.arguments import checked_methods
from millstream.core.model.durations import Duration
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import K2, V2, K, V
from millstream.core.model.serdes import Serde
from millstream.core.topology.join_nodes import JoinKind
from millstream.core.topology.stores import StoreLike

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream, KTable

R = TypeVar("R")


@checked_methods
class JoinableStream(StreamHandle[K, V]):
    """The joins of ``KStream``."""

    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2], R],
        /,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2], R],
        /,
        *,
        with_key: Literal[True],
        **options: Unpack[WithTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        /,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        /,
        *,
        with_key: Literal[True],
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        table: GlobalKTable[K2, V2],
        selector: Callable[[K, V], K2 | None],
        joiner: Callable[[V, V2], R],
        /,
        *,
        with_key: Literal[False] = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        table: GlobalKTable[K2, V2],
        selector: Callable[[K, V], K2 | None],
        joiner: Callable[[K, V, V2], R],
        /,
        *,
        with_key: Literal[True],
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    def join(
        self,
        other: KTable[Any, Any] | GlobalKTable[Any, Any] | KStream[Any, Any],
        /,
        *functions: Callable[..., Any],
        windows: JoinWindows | None = None,
        with_key: bool = False,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        other_value: Serde[Any] | None = None,
        grace: Duration | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join each record with the records of the same key in a stream or a table, or with a row of a global table.

        With a global table, each record has one result, with the row whose key the selector returns. Nothing is repartitioned, and the
        result has the key, timestamp and headers of the record. With a table, each record has one result, with the current row of its key,
        or with the row as of the record's time if the table is versioned; changes of the table have no results. With a stream, each pair of
        records whose times are within ``windows`` of each other has one result, with the larger timestamp, when the second record arrives.
        A record without a key or value is dropped and counted.

        If keys were changed upstream, the records are repartitioned first. Both sides must have the same number of partitions.

        Args:
            other: The table, the global table or the other stream.
            functions: The joiner, ``(this value, other value) -> value``, or with ``with_key`` ``(key, this value, other value)
                -> value``. With a global table, the selector comes first, ``(key, value) -> key of the row``; a record for which it
                returns None is dropped and counted.
            windows: With a stream: the maximum distance in time of two records.
            with_key: Whether the joiner also takes the key.
            key: Serde of the keys, for a repartition and the stores; None uses the known serde, else the builder's default.
            value: Serde of this stream's values; None as for ``key``.
            other_value: Serde of the other stream's values; None as for ``key``.
            grace: With a versioned table: how long a record is buffered for late rows, in stream time of the buffer; a timedelta, or
                milliseconds. At most the table's history retention.
            store: With a stream, or with ``grace``: first part of the names of the join's stores; None uses the name of the join.
            name: Name of the join and of its repartition.
            late: With a stream: called with a stream of this side's records that arrived after their windows had closed. They are joined
                with the records that are still stored, and may have missed partners.
            other_late: The same for the other side.

        Raises:
            TopologyError: If the other side belongs to another builder, a stream is joined without windows, ``grace`` exceeds the
                history retention of the table, or an option does not apply to the other side.

        Source: KIP-28, "High-level Stream DSL"; KIP-353; KIP-914; KIP-923; ``KStreamKTableJoin``, ``KStreamKStreamJoin``,
        ``KStreamGlobalKTableJoin``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> prices = builder.table("prices")
            >>> orders = builder.stream("orders")
            >>> orders.join(prices, lambda order, price: f"{order} at {price}").to("out")
            >>> orders.left_join(prices, lambda order, price: f"{order}: {price}").to("all")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for topic, key, value in (("prices", "apple", "3"), ("orders", "apple", "two"), ("orders", "pear", "six")):
            ...     driver.pipe(topic, key, value)
            >>> [record.value for topic in ("out", "all") for record in driver.read(topic)]
            ['two at 3', 'two: 3', 'six: None']
        """
        options = JoinOptions(windows, key, value, other_value, grace, store, late, other_late)
        return self._joined_stream("inner", other, functions, options, name, with_key=with_key)

    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2 | None], R],
        /,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        /,
        *,
        with_key: Literal[True],
        **options: Unpack[WithTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2 | None], R],
        /,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        /,
        *,
        with_key: Literal[True],
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        table: GlobalKTable[K2, V2],
        selector: Callable[[K, V], K2 | None],
        joiner: Callable[[V, V2 | None], R],
        /,
        *,
        with_key: Literal[False] = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        table: GlobalKTable[K2, V2],
        selector: Callable[[K, V], K2 | None],
        joiner: Callable[[K, V, V2 | None], R],
        /,
        *,
        with_key: Literal[True],
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    def left_join(
        self,
        other: KTable[Any, Any] | GlobalKTable[Any, Any] | KStream[Any, Any],
        /,
        *functions: Callable[..., Any],
        windows: JoinWindows | None = None,
        with_key: bool = False,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        other_value: Serde[Any] | None = None,
        grace: Duration | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join like :meth:`join`, with one result, whose other value is None, for each record without a partner.

        With a table, this result is immediate, or follows the grace period. With a stream, it follows when the window of the record has
        closed. A record without a key, or for which the selector returns None, has no partner. For arguments and example, see :meth:`join`.

        Source: ``KStreamKTableJoin``, ``KStreamKStreamJoin``; KIP-962 for records without keys.
        """
        options = JoinOptions(windows, key, value, other_value, grace, store, late, other_late)
        return self._joined_stream("left", other, functions, options, name, with_key=with_key)

    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        /,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        /,
        *,
        with_key: Literal[True],
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    def outer_join(
        self,
        other: KStream[Any, Any],
        /,
        *functions: Callable[..., Any],
        windows: JoinWindows | None = None,
        with_key: bool = False,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        other_value: Serde[Any] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join two streams like :meth:`join`, with one result for each record of either side without a partner.

        For the arguments, see :meth:`join`. One of the values that the joiner receives may be None, but never both.

        Raises:
            TopologyError: As in :meth:`join`, and if the other side is not a stream.

        Source: ``KStreamKStreamJoin``.
        """
        options = JoinOptions(windows, key, value, other_value, None, store, late, other_late)
        return self._joined_stream("outer", other, functions, options, name, with_key=with_key)

    @overload
    def join_prior(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        /,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def join_prior(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        /,
        *,
        with_key: Literal[True],
        **options: Unpack[WithStream[K, V, V2]],
    ) -> KStream[K, R]: ...
    def join_prior(
        self,
        other: KStream[Any, Any],
        joiner: Callable[..., Any],
        /,
        *,
        windows: JoinWindows | None = None,
        with_key: bool = False,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        other_value: Serde[Any] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join each arriving record of two streams with records of the other stream that have an older timestamp.

        Unlike in :meth:`join`, a record is not joined with records of its own time or later: two records that arrive out of order, or have
        the same timestamp, have no result. A result therefore contains what was known at the time of its newer record. For the arguments,
        see :meth:`join`.

        Raises:
            TopologyError: If the other side belongs to another builder, or is not a stream, or there are no windows.

        Source: KIP-28, ``KStream.joinPrior``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> day = ms.JoinWindows(before=86_400_000, after=0, grace=0)
            >>> shown = builder.stream("shown")
            >>> builder.stream("clicks").join_prior(shown, lambda click, ad: f"{click} on {ad}", windows=day).to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> driver.pipe("shown", "ann", "tea", 100)
            >>> driver.pipe("clicks", "ann", "first", 100)
            >>> driver.pipe("clicks", "ann", "second", 101)
            >>> [record.value for record in driver.read("out")]
            ['second on tea']
        """
        options = JoinOptions(windows, key, value, other_value, None, store, late, other_late)
        join = JoinFunction(joiner, "inner", name, with_key)
        node = joining.join_streams(self, other, join, options, prior=True)
        return self._graph.stream(node, key or self._key or other._key, None)

    def _joined_stream(
        self,
        kind: JoinKind,
        other: KTable[Any, Any] | GlobalKTable[Any, Any] | KStream[Any, Any],
        functions: tuple[Callable[..., Any], ...],
        options: JoinOptions,
        name: str | None,
        *,
        with_key: bool,
    ) -> KStream[K, Any]:
        if len(functions) != (2 if isinstance(other, GlobalKTable) else 1):
            raise TopologyError(
                "a join needs the other side and a joiner; a join with a global table also needs a function that selects "
                "the key of the row, before the joiner"
            )
        graph = self._graph
        join = JoinFunction(functions[-1], kind, name, with_key)
        if isinstance(other, GlobalKTable):
            check_options(options, "a global table")
            node = joining.join_global(self, other, functions[0], join)
            return graph.stream(node, self._key, None, rekeyed=self._rekeyed)
        if isinstance(other, StreamHandle):
            check_options(options, "another stream")
            node = joining.join_streams(self, other, join, options)
        else:
            check_options(options, "a table")
            node = joining.join_table(self, other, join, options)
        return graph.stream(node, options.key or self._key or other._key, None)
