"""KTable: the newest value per key, as a stream of its changes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar, overload

from millstream.core.dsl.aggregators import combining, minus_one, without_one
from millstream.core.dsl.folding import MEAN
from millstream.core.dsl.graph import TABLE_PARTS, Graph
from millstream.core.dsl.joinable_table import JoinableTable
from millstream.core.dsl.kstream import KStream
from millstream.core.dsl.suppressing import suppressing
from millstream.core.model import means, serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.serdes import Serde
from millstream.core.model.suppressed import Suppressed
from millstream.core.topology import nodes
from millstream.core.topology.folds import RECIPES, Fold
from millstream.core.topology.processor import TransformRows, ValueTransformer, checked_supplier
from millstream.core.topology.stores import Kept

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")
A = TypeVar("A")


@checked_methods
class KTable(JoinableTable[K, V]):
    """A table: the newest value per key. Made by ``StreamsBuilder.table`` and by aggregations.

    Its joins are in :class:`~millstream.core.dsl.joinable_table.JoinableTable`.

    Source: ``org.apache.kafka.streams.kstream.KTable``.
    """

    @property
    def store_name(self) -> str | None:
        """Name of the store that holds the table; None if it is computed when it is needed (``queryableStoreName``)."""
        node = self._graph.topology.nodes[self._node]
        return node.store.name if isinstance(node, nodes.Materialised) else None

    def filter(
        self, predicate: Callable[[K, V], object], *, store: Kept | None = None, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which a predicate of key and value holds; the others count as deleted.

        Args:
            predicate: Of key and value.
            store: Name of a store for the result, if it is to be kept.
            name: Name of the node.
        """
        node = nodes.TableFilter(self._graph.name("KTABLE-FILTER", name), (self._node,), predicate)
        return self._derived(node, self._value, store)

    def filter_not(
        self, predicate: Callable[[K, V], object], *, store: Kept | None = None, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which a predicate of key and value does not hold; see :meth:`filter`."""
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
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, V2]: ...

    @overload
    def map_values(
        self,
        mapper: Callable[[K, V], V2],
        *,
        with_key: Literal[True],
        value: Serde[V2] | None = ...,
        store: Kept | None = ...,
        name: str | None = ...,
    ) -> KTable[K, V2]: ...

    def map_values(
        self,
        mapper: Callable[..., Any],
        *,
        with_key: bool = False,
        value: Serde[Any] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, Any]:
        """Turn each value into another; deleted rows stay deleted and are not mapped.

        Args:
            mapper: ``value -> value``, or ``(key, value) -> value`` with ``with_key=True``.
            with_key: Whether the mapper wants the key too.
            value: Serde of the new values.
            store: Name of a store for the result, if it is to be kept.
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
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """Turn the value of each row into another, with the help of stores; the transformer is called for deletions too.

        The result is kept in a store of its own: what a transformer gave before cannot be asked of it again.

        Args:
            supplier: A class derived from ``ms.ValueTransformer``, or a function that makes a new one.
            stores: Names of the stores it uses, beside those that the class brings along in its attribute ``stores``.
            value: Serde of the new values; None is the builder's default.
            store: Name of the store of the result. The transformer may read it, too: it has what was given for the row before.
            name: Name of the node.

        Raises:
            TopologyError: If the supplier is a transformer instead of a way to make one, or a name is taken.

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
        graph, path = self._graph, self._graph.path(self._node)
        node = graph.name("KTABLE-TRANSFORMVALUES", name)
        if name is None:
            node = graph.names.kept(node, f"{path}-transform")
        kept = graph.kept_as(store, lambda: f"{node}-store", path, "transformed", name)
        used = (*stores, kept.name) if store is not None else tuple(stores)
        graph.add_supplied(TransformRows(node, (self._node,), checked_supplier(node, supplier), used))
        copy = graph.add_copy(node, kept, self._key or graph.default_key, value or graph.default_value)
        graph.begin(copy, path if store is None else kept.name, name)
        return KTable(graph, copy, self._key, value)

    def suppress(
        self, suppressed: Suppressed, *, store: Kept | None = None, name: str | None = None
    ) -> KTable[K, V]:
        """Hold updates back, and give only the newest one of each row later.

        Args:
            suppressed: ``ms.Suppressed.until_window_closes()`` gives one final result per window,
                ``ms.Suppressed.until_time_limit(...)`` at most one per row and time.
            store: Name of the store of what is held back; give one, so that an edit of the program does not lose it.
            name: Name of the node.

        Raises:
            TopologyError: If no windows close in this table, or it is a versioned one.

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
        node = suppressing(self, suppressed, store, name)
        return KTable(self._graph, node, self._key, self._value)

    @overload
    def to_stream(self, *, name: str | None = ...) -> KStream[K, V]: ...
    @overload
    def to_stream(self, select_key: Callable[[K, V], K2], *, name: str | None = ...) -> KStream[K2, V]: ...
    def to_stream(
        self, select_key: Callable[[Any, Any], Any] | None = None, *, name: str | None = None
    ) -> KStream[Any, V]:
        """Give the changes of the table as records; a deleted row is a record with a null value.

        Args:
            select_key: ``(key, value) -> new key``, for example to take the key out of a ``Windowed``; None keeps the key.
            name: Name of the node.
        """
        node = nodes.ToStream(self._graph.name("KTABLE-TOSTREAM", name), (self._node,))
        stream: KStream[Any, V] = KStream(
            self._graph, self._graph.add(node), self._key, self._value, rekeyed=False
        )
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
            selector: ``(key, value) -> (new key, new value)``; rows for which either is None are left out.
            key: Serde of the new keys; None is the builder's default.
            value: Serde of the new values; None is the builder's default.
            name: Name of the repartition and of the node that changes the key; None takes the name of the aggregation's
                store for the repartition.
        """
        graph = self._graph
        node = graph.add(nodes.GroupTable(graph.name("KTABLE-SELECT", name), (self._node,), selector))
        return KGroupedTable(graph, node, key or graph.default_key, value or graph.default_value, name)

    def _derived(self, node: nodes.Node, value: Serde[Any] | None, store: Kept | None) -> KTable[K, Any]:
        return self._kept(self._graph.add(node), value, store)

    def _kept(self, name: str, value: Serde[Any] | None, store: Kept | None) -> KTable[K, Any]:
        """Give the table of a node, kept in a store if there is one."""
        graph = self._graph
        if store is not None:
            kept = graph.given(store)
            name = graph.add_copy(name, kept, self._key or graph.default_key, value or graph.default_value)
            graph.begin(name, kept.name)
        return KTable(graph, name, self._key, value)


@checked_methods
class KGroupedTable(Generic[K, V]):
    """Rows of a table by a new key. Made by ``KTable.group_by``.

    When a row changes, its old value is subtracted from the group it was in and its new value added to the group it is in.
    If these are two groups, the two results appear one after the other.

    Source: ``org.apache.kafka.streams.kstream.KGroupedTable``.
    """

    def __init__(self, graph: Graph, node: str, key: Serde[Any], value: Serde[Any], name: str | None) -> None:
        self._graph = graph
        self._node = node
        self._key = key
        self._value = value
        self._name = name
        self._path = graph.path(node) if name is not None else graph.path(node, rekeyed=True)
        self._repartitioned: str | None = None

    def count(self, *, store: Kept | None = None, name: str | None = None) -> KTable[K, int]:
        """Count the rows per new key.

        Args:
            store: Name of the store of the counts.
            name: Name of the node, and without ``store`` first part of that of the store.
        """
        counting = RECIPES[Fold.COUNT]
        return self._aggregated(
            "count", store, name, counting.initializer, counting.aggregator, minus_one, serdes.int64
        )

    def sum(self, *, store: Kept | None = None, name: str | None = None) -> KTable[K, V]:
        """Add up the values per new key; the old value of a row that changes is subtracted.

        A group that has lost all its rows has the sum 0, as with ``reduce``. Floats may leave a rest behind.

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
        add, subtract = combining(operator.add), combining(operator.sub)
        return self._aggregated("sum", store, name, None, add, subtract, self._value)

    def mean(self, *, store: Kept | None = None, name: str | None = None) -> KTable[K, float]:
        """Give the mean of the values per new key, which are numbers (int or float); a group without rows has none.

        Args:
            store: Name of the store. It keeps the sum of the numbers and how many they are; whole numbers are added up exactly.
            name: As in :meth:`count`.

        Returns:
            A table from new key to mean, with ``serdes.float64``.
        """
        adding = RECIPES[Fold.MEAN]
        sums = self._aggregated(
            "mean", store, name, adding.initializer, adding.aggregator, without_one, means.serde
        )
        return sums.map_values(MEAN, value=serdes.float64)

    def reduce(
        self,
        adder: Callable[[V, V], V | None],
        subtractor: Callable[[V, V], V | None],
        *,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values per new key; the first value of a group is taken as it is.

        Args:
            adder: ``(result so far, new value) -> result``.
            subtractor: ``(result so far, old value) -> result``.
            store: Name of the store of the results.
            name: As in :meth:`count`.
        """
        return self._aggregated(
            "reduce", store, name, None, combining(adder), combining(subtractor), self._value
        )

    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A | None],
        subtractor: Callable[[K, V, A], A | None],
        *,
        value: Serde[A] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Aggregate the rows per new key.

        Args:
            initializer: Makes the aggregate of a new group.
            adder: ``(key, new value, aggregate so far) -> aggregate``.
            subtractor: ``(key, old value, aggregate so far) -> aggregate``.
            value: Serde of the aggregates; None is the builder's default.
            store: Name of the store of the aggregates.
            name: As in :meth:`count`.
        """
        return self._aggregated(
            "aggregate", store, name, initializer, adder, subtractor, value or self._graph.default_value
        )

    def _aggregated(
        self,
        word: str,
        store: Kept | None,
        name: str | None,
        initializer: Callable[[], Any] | None,
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
        value: Serde[Any],
    ) -> KTable[Any, Any]:
        graph = self._graph
        kept = graph.kept_as(store, lambda: graph.names.store("KTABLE-AGGREGATE"), self._path, word, name)
        spec = graph.add_store(kept, self._key, value)
        source = self._source(spec.name)
        node = graph.name("KTABLE-REDUCE" if initializer is None else "KTABLE-AGGREGATE", name)
        graph.add(nodes.TableAggregate(node, (source,), spec, initializer, adder, subtractor))
        graph.begin(node, spec.name, name)
        return KTable(graph, node, self._key, value)

    def _source(self, store: str) -> str:
        """Give the node to aggregate behind; the repartition is made once, however many aggregations there are."""
        graph = self._graph
        if self._repartitioned is None:
            changes, topic = serdes.change(self._value), self._name or store
            self._repartitioned = graph.repartition(
                self._node, topic, self._key, changes, drop_null_keys=False, kinds=TABLE_PARTS
            )
        else:
            graph.count_repartition(TABLE_PARTS)  # Kafka Streams makes one for each
        return self._repartitioned
