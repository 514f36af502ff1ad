"""The joins of a stream: with tables, global tables and other streams.

A face of its own because of its size: one method per kind of join, whose overloads give types to the joiner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from millstream.core.dsl import joins
from millstream.core.dsl.global_table import GlobalKTable
from millstream.core.dsl.graph import Graph
from millstream.core.dsl.join_windows import JoinWindows
from millstream.core.dsl.joins import JoinOptions
from millstream.core.model.arguments import checked_methods
from millstream.core.model.durations import Duration
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.topology.joins import JoinKind
from millstream.core.topology.stores import Kept

if TYPE_CHECKING:
    from millstream.core.dsl.kstream import KStream
    from millstream.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")


@checked_methods
class JoinableStream(Generic[K, V]):
    """What a ``KStream`` is joined with."""

    def __init__(
        self,
        graph: Graph,
        node: str,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        *,
        rekeyed: bool,
    ) -> None:
        self._graph = graph
        self._node = node
        self._key = key
        self._value = value
        self._rekeyed = rekeyed

    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2], R],
        /,
        *,
        with_key: Literal[False] = ...,
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        grace: Duration | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2], R],
        /,
        *,
        with_key: Literal[True],
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        grace: Duration | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[False] = ...,
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[True],
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
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
        store: Kept | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join each record with those of its key on another side.

        With a global table: each record gives a result with the row that the selector names; nothing is repartitioned, and
        key, timestamp and headers stay the record's. With a table: each record gives a result with the row that its key has
        now, or had at the record's time if the table has versions; changes of the table give none. With a stream: each pair of
        records gives one result whose times are within ``windows`` of each other, with the larger timestamp, as soon as the
        second of them arrives. A record without key or value is dropped and counted.

        If keys were changed upstream, the records are repartitioned first. Both sides need equal numbers of partitions.

        Args:
            other: The table, the global table or the other stream.
            functions: The joiner, ``(this value, other value) -> value``, or with ``with_key`` ``(key, this value, other value)
                -> value``. With a global table, before it the selector, ``(key, value) -> key of the row``; a record for
                which it gives None is dropped and counted.
            windows: For a stream: how far apart in time two records may be.
            with_key: Whether the joiner wants the key too.
            key: Serde of the keys, for a repartition and the stores; None takes what is known, else the builder's default.
            value: Serde of this stream's values, likewise.
            other_value: Serde of the other stream's values, likewise.
            grace: For a table with versions: so long a record waits, in stream time of those that wait, for rows that come late;
                a timedelta, or milliseconds. At most the table's history retention.
            store: For a stream, or with ``grace``: first part of the names of the join's stores; None is the name of the join.
            name: Name of the join, and of its repartition.
            late: For a stream: called with the stream of those records of this side whose windows had closed before they came, to
                send them somewhere. They are joined with what is still there, and may have missed partners.
            other_late: The same for the other side.

        Raises:
            TopologyError: If the other side belongs to another builder, a stream is joined without windows, ``grace`` is more
                than the history of the table, or an option is given that means nothing with that side.

        Source: KIP-28, "High-level Stream DSL"; KIP-353; KIP-914; KIP-923; ``KStreamKTableJoin``, ``KStreamKStreamJoin``,
        ``KStreamGlobalKTableJoin``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> prices = builder.table("prices")
            >>> builder.stream("orders").join(prices, lambda order, price: f"{order} at {price}").to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> driver.pipe("prices", "apple", "3", 0)
            >>> driver.pipe("orders", "apple", "two", 1)
            >>> [record.value for record in driver.read("out")]
            ['two at 3']
        """
        given = JoinOptions(windows, key, value, other_value, grace, store, late, other_late)
        return self._joined("inner", other, functions, given, name, with_key=with_key)

    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2 | None], R],
        /,
        *,
        with_key: Literal[False] = ...,
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        grace: Duration | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        /,
        *,
        with_key: Literal[True],
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        grace: Duration | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2 | None], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[False] = ...,
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[True],
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
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
        store: Kept | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join as :meth:`join` does, and give a record that finds no partner one result all the same, with None.

        With a table that is at once, or after its grace period; with a stream when the window of the record has closed. A
        record without a key, or for which the selector of a row gives None, finds no partner. For the arguments see
        :meth:`join`; what they call the other value may be None in the joiner.

        Source: ``KStreamKTableJoin``, ``KStreamKStreamJoin``; KIP-962 for records without keys.
        """
        given = JoinOptions(windows, key, value, other_value, grace, store, late, other_late)
        return self._joined("left", other, functions, given, name, with_key=with_key)

    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[False] = ...,
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[True],
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
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
        store: Kept | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join two streams as :meth:`join` does, and give records of either side that find no partner a result, with None.

        For the arguments see :meth:`join`; either value may be None in the joiner, never both.

        Raises:
            TopologyError: As :meth:`join`, and if the other side is no stream.

        Source: ``KStreamKStreamJoin``.
        """
        if not isinstance(other, JoinableStream):
            raise TopologyError(
                "an outer join of a stream is one with another stream: the changes of a table give no results; use left_join"
            )
        given = JoinOptions(windows, key, value, other_value, None, store, late, other_late)
        return self._joined("outer", other, functions, given, name, with_key=with_key)

    @overload
    def join_prior(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[False] = ...,
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
    ) -> KStream[K, R]: ...

    @overload
    def join_prior(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        /,
        *,
        windows: JoinWindows,
        with_key: Literal[True],
        key: Serde[K] | None = ...,
        value: Serde[V] | None = ...,
        other_value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        late: Callable[[KStream[K, V]], object] | None = ...,
        other_late: Callable[[KStream[K, V2]], object] | None = ...,
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
        store: Kept | None = None,
        name: str | None = None,
        late: Callable[[KStream[K, Any]], object] | None = None,
        other_late: Callable[[KStream[K, Any]], object] | None = None,
    ) -> KStream[K, Any]:
        """Join each arriving record of two streams with those of the other that have an older timestamp.

        As :meth:`join`, but a record meets nothing of its own time or later: of two records that come out of order, and of two
        with one timestamp, there is no result. So a result tells what was known at the time of its newer record.
        For the arguments see :meth:`join`.

        Raises:
            TopologyError: If the other side belongs to another builder, or is no stream, or there are no windows.

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
        if not isinstance(other, JoinableStream):
            raise TopologyError(
                "join_prior is for two streams; a table has one row per key, which join() takes"
            )
        given = JoinOptions(windows, key, value, other_value, None, store, late, other_late)
        joiner = joins.joiner_of(joiner, with_key=with_key)
        node = joins.join_streams(self, other, joiner, "inner", given, name, prior=True)
        return self._stream(node, key or self._key or other._key, rekeyed=False)

    def _joined(
        self,
        kind: JoinKind,
        other: KTable[Any, Any] | GlobalKTable[Any, Any] | KStream[Any, Any],
        functions: tuple[Callable[..., Any], ...],
        given: JoinOptions,
        name: str | None,
        *,
        with_key: bool,
    ) -> KStream[K, Any]:
        if len(functions) != (2 if isinstance(other, GlobalKTable) else 1):
            raise TopologyError(
                "a join takes the other side and a joiner; with a global table, a selector of the row's key before the joiner"
            )
        joiner = joins.joiner_of(functions[-1], with_key=with_key)
        if isinstance(other, GlobalKTable):
            joins.check_options(given, "a global table")
            node = joins.join_global(self, other, functions[0], joiner, kind, name=name)
            return self._stream(node, self._key, rekeyed=self._rekeyed)
        if isinstance(other, JoinableStream):
            joins.check_options(given, "another stream")
            node = joins.join_streams(self, other, joiner, kind, given, name)
        else:
            joins.check_options(given, "a table")
            node = joins.join_table(self, other, joiner, kind, given, name)
        return self._stream(node, given.key or self._key or other._key, rekeyed=False)

    def _stream(self, node: str, key: Serde[Any] | None, *, rekeyed: bool) -> KStream[K, Any]:
        from millstream.core.dsl.kstream import KStream  # a stream has joins and a join gives streams

        return KStream(self._graph, node, key, None, rekeyed=rekeyed)
