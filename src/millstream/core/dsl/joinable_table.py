"""The joins of a table: with another table by key, or by a foreign key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from millstream.core.dsl.handle import TableHandle
from millstream.core.dsl.operators import joining
from millstream.core.dsl.operators.foreign_key_joins import (
    ForeignKeyOptions,
    foreign_key_options,
    join_by_foreign_key,
)
from millstream.core.dsl.operators.joining import JoinFunction
from millstream.core.model.arguments import checked_methods
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import K2, V2, K, V
from millstream.core.model.serdes import Serde
from millstream.core.topology.stores import StoreLike

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KTable

R = TypeVar("R")

NullForeignKey: TypeAlias = Literal["deletes", "ignored"]
"""What a foreign-key join does with a row that references no other row."""


@checked_methods
class JoinableTable(TableHandle[K, V]):
    """The joins of ``KTable``."""

    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2], R],
        *,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
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
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Join two tables: the result has a row where both tables have one.

        Without ``on``, rows with equal keys are joined. With ``on``, each row is joined with the row of the other table whose key it
        references, so many rows may be joined with one. The tables may then have different numbers of partitions, and the join uses two
        internal topics.

        Each change of either table changes the result. The timestamp of a result is the larger one of the timestamps of the two rows; with
        ``on``, it is the timestamp of the other table's row if that row has changed.

        Args:
            other: The other table. Without ``on``, it must have the same keys and the same number of partitions.
            joiner: ``(this value, other value) -> value``, or ``(key, this value, other value) -> value``.
            on: ``value -> key in the other table``, or ``(key, value) -> key in the other table``. A row for which it returns None
                has no result, and is counted as dropped.
            partitioner: With ``on``: ``(key, partitions) -> partition`` of the rows of this table, if the producers of its topic do not
                choose partitions like Java producers; answers must reach the tasks of the rows.
            other_partitioner: The same for the rows of the other table.
            null_on: What happens to a result when ``on`` returns None for the new value of its row. ``"deletes"`` deletes the result.
                ``"ignored"`` ignores this change and the next one, as in Kafka Streams before 4.1, which leaves an outdated result
                (KAFKA-16407).
            with_key: Whether the joiner and ``on`` also take the key.
            value: Serde of the results, for the store.
            store: Name of a store for the result; None stores no result. A join with ``on`` always stores its result.
            name: Name of the node of the result; with ``on``, also the first part of the names of its topics and stores.

        Returns:
            A table of the results, with the keys of this table.

        Raises:
            TopologyError: If the other table belongs to another builder, ``null_on`` has another value, or there are partitioners
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
            raise TopologyError(f"null_on must be 'deletes' or 'ignored', not {null_on!r}")
        join = JoinFunction(joiner, "inner", name, with_key)
        foreign = foreign_key_options(
            on, (partitioner, other_partitioner), with_key=with_key, ignores_null=null_on == "ignored"
        )
        return self._joined_table(other, join, value, store, foreign)

    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
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
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Join two tables like :meth:`join`; a row of this table also has a result if the other table has no row.

        The joiner receives None for a missing row of the other table. A row for which ``on`` returns None has a result, too. For the other
        arguments, see :meth:`join`.

        Returns:
            A table of the results, with the keys of this table.

        Raises:
            TopologyError: As in :meth:`join`.

        Source: ``KTableKTableLeftJoin``; KIP-213 and KIP-962 for foreign keys.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> joined = builder.table("names").left_join(builder.table("towns"), lambda name, town: f"{name} of {town}")
            >>> joined.to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for topic, value in [("names", "Ada"), ("towns", "London")]:
            ...     driver.pipe(topic, "1", value, 0)
            >>> [record.value for record in driver.read("out")]
            ['Ada of None', 'Ada of London']
        """
        join = JoinFunction(joiner, "left", name, with_key)
        foreign = foreign_key_options(on, (partitioner, other_partitioner), with_key=with_key)
        return self._joined_table(other, join, value, store, foreign)

    @overload
    def outer_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        *,
        with_key: Literal[False] = ...,
        value: Serde[R] | None = ...,
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
        name: str | None = ...,
    ) -> KTable[K, R]: ...
    def outer_join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., Any],
        *,
        with_key: bool = False,
        value: Serde[Any] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Join two tables by key: the result has a row where either table has one.

        The joiner receives None for a missing row of either table, but never for both. For the arguments, see :meth:`join`.

        Returns:
            A table of the results.

        Raises:
            TopologyError: If the other table belongs to another builder.

        Source: ``KTableKTableOuterJoin``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> joined = builder.table("names").outer_join(builder.table("towns"), lambda name, town: f"{name} of {town}")
            >>> joined.to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for topic, value in [("towns", "London"), ("names", "Ada"), ("towns", None)]:
            ...     driver.pipe(topic, "1", value, 0)
            >>> [record.value for record in driver.read("out")]
            ['None of London', 'Ada of London', 'Ada of None']
        """
        join = JoinFunction(joiner, "outer", name, with_key)
        return self._joined_table(other, join, value, store)

    def _joined_table(
        self,
        other: KTable[Any, Any],
        join: JoinFunction,
        value: Serde[Any] | None,
        store: StoreLike | None,
        foreign: ForeignKeyOptions | None = None,
    ) -> KTable[K, Any]:
        if foreign is not None:
            node = join_by_foreign_key((self, other), join, foreign, value, store)
            return self._graph.table(node, self._key, value)
        node = joining.join_tables(self, other, join, value, store)
        return self._graph.table(node, self._key or other._key, value)
