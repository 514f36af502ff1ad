"""KTable: the newest value per key, as a stream of its changes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from millstream.core.dsl.handle import WithPythonNames
from millstream.core.dsl.joinable_table import JoinableTable
from millstream.core.dsl.operators.aggregation import (
    MEAN,
    GroupedAggregation,
    Grouping,
    combining,
    folding,
    minus_one,
    without_number,
)
from millstream.core.dsl.operators.suppressing import suppress
from millstream.core.model import serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.record import K2, V2, K, V
from millstream.core.model.serdes import Serde
from millstream.core.model.suppressed import Suppressed
from millstream.core.topology import nodes
from millstream.core.topology.checks import checked_supplier
from millstream.core.topology.folds import Fold
from millstream.core.topology.processor import TransformRows, ValueTransformer
from millstream.core.topology.stores import StoreLike, StoreOptions

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream

A = TypeVar("A")


@checked_methods
class KTable(JoinableTable[K, V]):
    """A table: the newest value per key. Returned by ``StreamsBuilder.table`` and by aggregations.

    Each method raises ``ArgumentError`` if an argument has a wrong type, and ``TopologyError`` if a name is in use.

    Source: KIP-28, "High-level Stream DSL"; the methods of ``org.apache.kafka.streams.kstream.KTable``, such as ``mapValues``.

    Examples:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> builder.table("in").filter(lambda key, value: value != "x").map_values(str.upper).to_stream().to("out")
        >>> driver = ms.testing.TopologyTestDriver(builder.build())
        >>> for value in ("v", "x"):
        ...     driver.pipe("in", "k", value)
        >>> [record.value for record in driver.read("out")]
        ['V', None]
    """

    @property
    def store_name(self) -> str | None:
        """Name of the store that contains the table; None if the table is computed on lookup (``queryableStoreName``)."""
        node = self._graph.topology.nodes[self._node]
        return node.store.name if isinstance(node, nodes.Materialised) else None

    def filter(
        self, predicate: Callable[[K, V], object], *, store: StoreLike | None = None, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which a predicate of key and value is true; the others are deleted.

        Args:
            predicate: ``(key, value) -> bool``.
            store: Name of a store for the result; None stores no result.
            name: Name of the node.
        """
        node = nodes.TableFilter(self._graph.name("KTABLE-FILTER", name), (self._node,), predicate)
        return self._derived(node, self._value, store)

    def filter_not(
        self, predicate: Callable[[K, V], object], *, store: StoreLike | None = None, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which a predicate of key and value is false; see :meth:`filter`."""
        node = nodes.TableFilter(
            self._graph.name("KTABLE-FILTER", name), (self._node,), predicate, keep=False
        )
        return self._derived(node, self._value, store)

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2],
        *,
        with_key: Literal[False] = ...,
        value: Serde[V2] | None = ...,
        store: StoreLike | None = ...,
        name: str | None = ...,
    ) -> KTable[K, V2]: ...
    @overload
    def map_values(
        self,
        mapper: Callable[[K, V], V2],
        *,
        with_key: Literal[True],
        value: Serde[V2] | None = ...,
        store: StoreLike | None = ...,
        name: str | None = ...,
    ) -> KTable[K, V2]: ...
    def map_values(
        self,
        mapper: Callable[..., Any],
        *,
        with_key: bool = False,
        value: Serde[Any] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Map each value to a new value. Deleted rows stay deleted and are not mapped.

        Args:
            mapper: ``value -> value``, or ``(key, value) -> value`` with ``with_key=True``.
            with_key: Whether the mapper also takes the key.
            value: Serde of the new values.
            store: Name of a store for the result; None stores no result.
            name: Name of the node.
        """
        node = nodes.TableMapValues(
            self._graph.name("KTABLE-MAPVALUES", name), (self._node,), mapper, with_key
        )
        return self._derived(node, value, store)

    def transform_values(
        self,
        supplier: Callable[[], ValueTransformer[K, V, V2]],
        *,
        stores: Iterable[str] = (),
        value: Serde[V2] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """Map the value of each row to a new value with a transformer, which may use stores and is also called for deletions.

        The result is stored, because a transformer cannot recompute an earlier result.

        Args:
            supplier: A class derived from ``ms.ValueTransformer``, or a function that returns a new transformer.
            stores: Names of the stores that it uses, in addition to those in the attribute ``stores`` of the class.
            value: Serde of the new values; None uses the builder's default.
            store: Name of the store of the result. The transformer may also read it: it contains the previous result of the row.
            name: Name of the node.

        Raises:
            TopologyError: If the supplier is itself a transformer, or a name is in use.

        Source: ``KTable.transformValues``.

        Example:
            >>> import millstream as ms
            >>> class Longest(ms.ValueTransformer[str, str, str]):
            ...     def transform(self, key, value):
            ...         seen = self.context.state_store("seen")
            ...         longest = max(seen.get(key) or "", value or "", key=len)
            ...         seen.put(key, longest)
            ...         return longest
            >>> builder = ms.StreamsBuilder()
            >>> _ = builder.add_state_store(ms.stores.key_value("seen", ms.serdes.string, ms.serdes.string))
            >>> longest = builder.table("in").transform_values(Longest, stores=["seen"], store="longest")
            >>> longest.to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for word in ("a", "long", "to"):
            ...     driver.pipe("in", "k", word)
            >>> [record.value for record in driver.read("out")]
            ['a', 'long', 'long']
        """
        graph, path = self._graph, self._path
        node = graph.name("KTABLE-TRANSFORMVALUES", name)
        if name is None:
            node = graph.names.generate(node, f"{path}-transform")
        options = graph.store_options(store, lambda: f"{node}-store", path, "transformed", name)
        used = (*stores, options.name) if store is not None else tuple(stores)
        graph.add_supplied(TransformRows(node, (self._node,), checked_supplier(node, supplier), used))
        copy = self._copy(node, value, options)
        graph.begin(copy, path if store is None else options.name, name)
        return KTable(graph, copy, self._key, value)

    def suppress(
        self, suppressed: Suppressed, *, store: StoreLike | None = None, name: str | None = None
    ) -> KTable[K, V]:
        """Buffer updates, and later emit only the newest one of each row.

        Args:
            suppressed: ``ms.Suppressed.until_window_closes()`` emits one final result per window;
                ``ms.Suppressed.until_time_limit(...)`` emits at most one result per row and time limit.
            store: Name of the store of the buffered updates. Without a name, an edit of the program may lose them.
            name: Name of the node.

        Raises:
            TopologyError: If the table has no windows that close, or is versioned.

        Source: ``KTable.suppress``; KIP-328.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> clicks = builder.stream("clicks").group_by_key().windowed_by(ms.TumblingWindows(60_000, grace=5_000))
            >>> final = clicks.count(store="clicks").suppress(ms.Suppressed.until_window_closes(), store="open")
            >>> final.to_stream(lambda window, _: window.key).to("counts", value=ms.serdes.int64)
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp in (0, 59_999, 65_000):
            ...     driver.pipe("clicks", "ann", "x", timestamp)
            >>> [(r.key, r.value) for r in driver.read("counts")]
            [('ann', 2)]
        """
        node = suppress(self, suppressed, store, name)
        return KTable(self._graph, node, self._key, self._value)

    @overload
    def to_stream(self, *, name: str | None = ...) -> KStream[K, V]: ...
    @overload
    def to_stream(self, select_key: Callable[[K, V], K2], *, name: str | None = ...) -> KStream[K2, V]: ...
    def to_stream(
        self, select_key: Callable[[Any, Any], Any] | None = None, *, name: str | None = None
    ) -> KStream[Any, V]:
        """Return the changes of the table as records; a deleted row is a record with a null value.

        Args:
            select_key: ``(key, value) -> new key``, for example to extract the key of a ``Windowed``; None keeps the key.
            name: Name of the node.
        """
        node = nodes.ToStream(self._graph.name("KTABLE-TOSTREAM", name), (self._node,))
        stream = self._graph.stream(self._graph.add(node), self._key, self._value)
        return stream if select_key is None else stream.select_key(select_key)

    def group_by(
        self,
        selector: Callable[[K, V], tuple[K2, V2]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KGroupedTable[K2, V2]:
        """Group the rows by a new key.

        Args:
            selector: ``(key, value) -> (new key, new value)``; rows for which either is None are dropped.
            key: Serde of the new keys; None uses the builder's default.
            value: Serde of the new values; None uses the builder's default.
            name: Name of the repartition and of the node that changes the key; None names the former after the store.
        """
        graph, node_name = self._graph, self._graph.name("KTABLE-SELECT", name)
        serdes = key or graph.default_key, value or graph.default_value
        node = graph.add(nodes.GroupTable(node_name, (self._node,), selector, serdes[0]))
        return KGroupedTable(Grouping(graph, node, serdes, name=name, rekeyed=True, changes=True))

    def _derived(self, node: nodes.Node, value: Serde[Any] | None, store: StoreLike | None) -> KTable[K, Any]:
        graph, name = self._graph, self._graph.add(node)
        if store is not None:
            options = graph.named_store(store)
            name = self._copy(name, value, options)
            graph.begin(name, options.name)
        return KTable(graph, name, self._key, value)

    def _copy(self, node: str, value: Serde[Any] | None, options: StoreOptions) -> str:
        return self._graph.add_copy(node, options, self._serdes()[0], value or self._graph.default_value)


@checked_methods
class KGroupedTable(WithPythonNames, Generic[K, V]):
    """Rows of a table, grouped by a new key. Returned by ``KTable.group_by``.

    When a row changes, its old value is subtracted from its old group and its new value is added to its new group. If the groups differ,
    there are two results, one after the other. Each method raises ``ArgumentError`` and ``TopologyError`` as those of ``KTable`` do.

    Source: ``org.apache.kafka.streams.kstream.KGroupedTable``, which has no ``sum`` and ``mean``.

    Examples:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> towns = builder.table("towns").group_by(lambda person, town: (town, person))
        >>> towns.count(store="people").to_stream().to("out", value=ms.serdes.int64)
        >>> driver = ms.testing.TopologyTestDriver(builder.build())
        >>> for town in ("Bath", "York"):
        ...     driver.pipe("towns", "ann", town)
        >>> [(record.key, record.value) for record in driver.read("out")]
        [('Bath', 1), ('Bath', 0), ('York', 1)]
    """

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping

    def count(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[K, int]:
        """Count the rows per new key (64 bits).

        Args:
            store: Name of the store of the counts.
            name: Name of the node; without ``store``, also the first part of the store's name.
        """
        return self._aggregated(folding(Fold.COUNT, serdes.int64), minus_one, store, name)

    def sum(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[K, V]:
        """Sum the values per new key; the old value of a changed row is subtracted.

        A group without rows has the sum 0, as with ``reduce``. With floats, a rounding error may remain.

        Args:
            store: Name of the store of the sums.
            name: As in :meth:`count`.

        Returns:
            A table from new key to sum, with the serde of the values.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> prices = builder.table("prices", value=ms.serdes.int64, store="prices")
            >>> prices.group_by(lambda key, value: (key[0], value), value=ms.serdes.int64).sum(store="sums").to_stream().to("sums")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for key, price in (("a1", 3), ("a2", 4), ("a1", 5)):
            ...     driver.pipe("prices", key, price)
            >>> [record.value for record in driver.read("sums")]
            [3, 7, 9]
        """
        adding = GroupedAggregation("sum", None, combining(operator.add), self._grouping.value)
        return self._aggregated(adding, combining(operator.sub), store, name)

    def mean(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[K, float]:
        """Compute the mean of the values, which must be int or float, per new key. A group without rows has no mean.

        Args:
            store: Name of the store, which contains the sum and the count of the values. Integers are summed exactly.
            name: As in :meth:`count`.

        Returns:
            A table from new key to mean, with ``serdes.float64``.
        """
        sums = self._aggregated(folding(Fold.MEAN, self._grouping.value), without_number, store, name)
        return sums.map_values(MEAN, value=serdes.float64)

    def reduce(
        self,
        adder: Callable[[V, V], V | None],
        subtractor: Callable[[V, V], V | None],
        *,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values per new key. The first value of a group is its first result.

        Args:
            adder: ``(current result, new value) -> result``.
            subtractor: ``(current result, old value) -> result``.
            store: Name of the store of the results.
            name: As in :meth:`count`.
        """
        reducing = GroupedAggregation("reduce", None, combining(adder), self._grouping.value)
        return self._aggregated(reducing, combining(subtractor), store, name)

    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A | None],
        subtractor: Callable[[K, V, A], A | None],
        *,
        value: Serde[A] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Aggregate the rows per new key.

        Args:
            initializer: Creates the first aggregate of a group.
            adder: ``(key, new value, aggregate) -> aggregate``.
            subtractor: ``(key, old value, aggregate) -> aggregate``.
            value: Serde of the aggregates; None uses the builder's default.
            store: Name of the store of the aggregates.
            name: As in :meth:`count`.
        """
        value = value or self._grouping.graph.default_value
        return self._aggregated(
            GroupedAggregation("aggregate", initializer, adder, value), subtractor, store, name
        )

    def _aggregated(
        self,
        adding: GroupedAggregation,
        subtractor: Callable[[Any, Any, Any], Any],
        store: StoreLike | None,
        name: str | None,
    ) -> KTable[Any, Any]:
        grouping, graph = self._grouping, self._grouping.graph
        options = graph.store_options(
            store, lambda: graph.names.store("KTABLE-AGGREGATE"), grouping.path, adding.operation, name
        )
        spec = graph.store(options, grouping.key, adding.value)
        source = grouping.source(spec.name)
        node = graph.name("KTABLE-REDUCE" if adding.initializer is None else "KTABLE-AGGREGATE", name)
        graph.add(
            nodes.TableAggregate(node, (source,), spec, adding.initializer, adding.aggregator, subtractor)
        )
        graph.begin(node, spec.name, name)
        return KTable(graph, node, grouping.key, adding.value)
