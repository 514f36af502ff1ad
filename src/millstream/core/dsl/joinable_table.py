"""The joins of a table: with another by their keys, or by a foreign key.

A face of its own because of its size: one method per kind of join, whose overloads give types to the joiner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

from millstream.core.dsl import foreign_keys, joins
from millstream.core.dsl.foreign_keys import ForeignKeyOptions
from millstream.core.dsl.graph import Graph
from millstream.core.model.arguments import checked_methods
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.topology.joins import JoinKind
from millstream.core.topology.stores import Kept

if TYPE_CHECKING:
    from millstream.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")

NullForeignKey: TypeAlias = Literal["deletes", "ignored"]
"""What a join by a foreign key does with a row that names no other."""


@checked_methods
class JoinableTable(Generic[K, V]):
    """What a ``KTable`` is joined with."""

    def __init__(self, graph: Graph, node: str, key: Serde[Any] | None, value: Serde[Any] | None) -> None:
        self._graph = graph
        self._node = node
        self._key = key
        self._value = value

    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2], R],
        *,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        with_key: Literal[True],
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    @overload
    def join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[V, V2], R],
        *,
        on: Callable[[V], K2 | None],
        partitioner: Callable[[K, int], int] | None = ...,
        other_partitioner: Callable[[K2, int], int] | None = ...,
        null_on: NullForeignKey = ...,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    @overload
    def join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        on: Callable[[K, V], K2 | None],
        partitioner: Callable[[K, int], int] | None = ...,
        other_partitioner: Callable[[K2, int], int] | None = ...,
        null_on: NullForeignKey = ...,
        with_key: Literal[True],
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    def join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., Any],
        *,
        on: Callable[..., Any] | None = None,
        partitioner: Callable[[Any, int], int] | None = None,
        other_partitioner: Callable[[Any, int], int] | None = None,
        null_on: NullForeignKey = "deletes",
        with_key: bool = False,
        value: Serde[Any] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Join two tables: the result has a row where both have one.

        Without ``on`` the rows of equal keys are joined. With it each row is joined with the row of the other table whose key
        it names, so that many rows may be joined with one; the tables may have different numbers of partitions then, and the
        join goes through two internal topics.

        Each change of either table changes the result. Its timestamp is the larger one of the two rows'; with ``on``, that of
        the other table's row if that one was changed.

        Args:
            other: The other table. Without ``on`` it needs the same keys and the same number of partitions.
            joiner: ``(this value, other value) -> value``, or ``(key, this value, other value) -> value``.
            on: ``value -> key in the other table``, or ``(key, value) -> key in the other table``. A row for which it gives None
                has no result, and is counted as dropped.
            partitioner: ``(key, partitions) -> partition`` of the rows of this table, with ``on``, if its topic was not written as Java
                producers do: the answers must come where the rows are.
            other_partitioner: The same of the rows of the other table.
            null_on: What becomes of a result when ``on`` gives None for the new value of its row. ``"deletes"``: it is deleted.
                ``"ignored"``: as in Kafka Streams before 4.1, the change is ignored, and so is the next one, which leaves a
                result that is out of date (KAFKA-16407).
            with_key: Whether the joiner, and ``on``, want the key too.
            value: Serde of the results, for the store.
            store: Name of a store for the result, if it is to be kept; a join with ``on`` keeps it always.
            name: Name of the node of the result; with ``on`` also first part of the names of its topics and stores.

        Raises:
            TopologyError: If the other table belongs to another builder, ``null_on`` is neither, or there are partitioners
                without ``on``.

        Source: ``KTableKTableInnerJoin``; KIP-353; KIP-213 for foreign keys.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> joined = builder.table("names").join(builder.table("towns"), lambda name, town: f"{name} of {town}")
            >>> joined.to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for topic, value in [("names", "Ada"), ("towns", "London"), ("names", "Grace"), ("towns", None)]:
            ...     driver.pipe(topic, "1", value, 0)
            >>> [record.value for record in driver.read("out")]
            ['Ada of London', 'Grace of London', None]
        """
        if null_on not in ("deletes", "ignored"):
            raise TopologyError(f"null_on is 'deletes' or 'ignored', not {null_on!r}")
        ignores_null = null_on == "ignored"
        foreign = ForeignKeyOptions(on, partitioner, other_partitioner, ignores_null)
        return self._joined("inner", other, joiner, foreign, value, store, name, with_key=with_key)

    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        with_key: Literal[True],
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    @overload
    def left_join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        on: Callable[[V], K2 | None],
        partitioner: Callable[[K, int], int] | None = ...,
        other_partitioner: Callable[[K2, int], int] | None = ...,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    @overload
    def left_join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        on: Callable[[K, V], K2 | None],
        partitioner: Callable[[K, int], int] | None = ...,
        other_partitioner: Callable[[K2, int], int] | None = ...,
        with_key: Literal[True],
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    def left_join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., Any],
        *,
        on: Callable[..., Any] | None = None,
        partitioner: Callable[[Any, int], int] | None = None,
        other_partitioner: Callable[[Any, int], int] | None = None,
        with_key: bool = False,
        value: Serde[Any] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Join two tables as :meth:`join` does; a row of this one has a result also where the other has none.

        The joiner gets None for the other row then, also where ``on`` gives None. For the arguments see :meth:`join`.

        Source: ``KTableKTableLeftJoin``; KIP-213 and KIP-962 for foreign keys.
        """
        foreign = ForeignKeyOptions(on, partitioner, other_partitioner)
        return self._joined("left", other, joiner, foreign, value, store, name, with_key=with_key)

    @overload
    def outer_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        *,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    @overload
    def outer_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        *,
        with_key: Literal[True],
        value: Serde[R] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...

    def outer_join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., Any],
        *,
        with_key: bool = False,
        value: Serde[Any] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Join two tables by their keys: the result has a row where either has one; None stands for a missing row.

        For the arguments see :meth:`join`.

        Source: ``KTableKTableOuterJoin``.
        """
        foreign = ForeignKeyOptions()
        return self._joined("outer", other, joiner, foreign, value, store, name, with_key=with_key)

    def _joined(
        self,
        kind: JoinKind,
        other: KTable[Any, Any],
        joiner: Callable[..., Any],
        foreign: ForeignKeyOptions,
        value: Serde[Any] | None,
        store: Kept | None,
        name: str | None,
        *,
        with_key: bool,
    ) -> KTable[K, Any]:
        from millstream.core.dsl.ktable import KTable  # a table has joins and a join gives tables

        make = joins.joiner_of(joiner, with_key=with_key)
        if foreign.on is None:
            if foreign.partitioner is not None or foreign.other_partitioner is not None:
                raise TopologyError(
                    "partitioners are for a join by a foreign key (on=...), which goes through topics; leave them out"
                )
            node = joins.join_tables(self, other, make, kind, value, store, name)
            return KTable(self._graph, node, self._key or other._key, value)
        node = foreign_keys.join_tables(
            self, other, make, kind, foreign, value, store, name, with_key=with_key
        )
        return KTable(self._graph, node, self._key, value)
