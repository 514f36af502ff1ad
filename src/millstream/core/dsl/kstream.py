"""KStream: a stream of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from millstream.core.dsl.branched import BranchedKStream
from millstream.core.dsl.grouped import KGroupedStream
from millstream.core.dsl.joinable import JoinableStream
from millstream.core.dsl.operators.aggregation import Grouping
from millstream.core.dsl.operators.printing import Printing
from millstream.core.dsl.processing import ProcessableStream
from millstream.core.model.arguments import checked_methods
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import K2, V2, K, V
from millstream.core.model.serdes import Serde, window_bytes
from millstream.core.topology import nodes
from millstream.core.topology.nodes import Sink, StreamPartitioner, TopicNameExtractor
from millstream.core.topology.stores import StoreLike

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.core.dsl.forward import KTable


@checked_methods
class KStream(JoinableStream[K, V], ProcessableStream[K, V]):
    """A stream of records, each independent of the others. Returned by ``StreamsBuilder.stream``.

    Operators return new streams and do not change this one; they keep timestamps and headers. Functions receive keys and values as
    objects; None represents null. ``name`` is the name of an operator's node. Each method raises ``ArgumentError`` if an argument has a
    wrong type, and ``TopologyError`` if a name is in use.

    Source: KIP-28, "High-level Stream DSL"; the methods of ``org.apache.kafka.streams.kstream.KStream``, such as ``flatMapValues``.

    Examples:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> words = builder.stream("in").flat_map_values(str.split).filter(lambda key, word: word != "or")
        >>> words.select_key(lambda key, word: word[0]).map_values(str.upper).to("out")
        >>> driver = ms.testing.TopologyTestDriver(builder.build())
        >>> driver.pipe("in", "1", "tea or milk")
        >>> [(record.key, record.value) for record in driver.read("out")]
        [('t', 'TEA'), ('m', 'MILK')]
    """

    def filter(self, predicate: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Keep the records for which ``predicate`` of key and value is true."""
        node = nodes.Filter(self._graph.name("KSTREAM-FILTER", name), (self._node,), predicate)
        return self._same_types(node)

    def filter_not(self, predicate: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Keep the records for which ``predicate`` of key and value is false."""
        node = nodes.Filter(self._graph.name("KSTREAM-FILTER", name), (self._node,), predicate, keep=False)
        return self._same_types(node)

    def map(self, mapper: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None) -> KStream[K2, V2]:
        """Map each key and value to a new key and value; a later grouping repartitions the records.

        Args:
            mapper: ``(key, value) -> (key, value)``.
            name: Name of the node.
        """
        node = nodes.Map(self._graph.name("KSTREAM-MAP", name), (self._node,), mapper)
        return KStream(self._graph, self._graph.add(node), None, None, rekeyed=True)

    @overload
    def map_values(
        self, mapper: Callable[[V], V2], *, with_key: Literal[False] = ..., name: str | None = ...
    ) -> KStream[K, V2]: ...

    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, with_key: Literal[True], name: str | None = ...
    ) -> KStream[K, V2]: ...

    def map_values(
        self, mapper: Callable[..., Any], *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, Any]:
        """Map each value to a new value. Keys do not change, so nothing is repartitioned.

        Args:
            mapper: ``value -> value``, or ``(key, value) -> value`` with ``with_key=True``.
            with_key: Whether the mapper also takes the key.
            name: Name of the node.
        """
        node = nodes.MapValues(self._graph.name("KSTREAM-MAPVALUES", name), (self._node,), mapper, with_key)
        return self._new_values(node)

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Map each record to any number of records; a later grouping repartitions them.

        Args:
            mapper: ``(key, value) -> iterable of (key, value)``.
            name: Name of the node.
        """
        node = nodes.FlatMap(self._graph.name("KSTREAM-FLATMAP", name), (self._node,), mapper)
        return KStream(self._graph, self._graph.add(node), None, None, rekeyed=True)

    @overload
    def flat_map_values(
        self,
        mapper: Callable[[V], Iterable[V2]],
        *,
        with_key: Literal[False] = ...,
        name: str | None = ...,
    ) -> KStream[K, V2]: ...

    @overload
    def flat_map_values(
        self, mapper: Callable[[K, V], Iterable[V2]], *, with_key: Literal[True], name: str | None = ...
    ) -> KStream[K, V2]: ...

    def flat_map_values(
        self, mapper: Callable[..., Iterable[Any]], *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, Any]:
        """Map each value to any number of values, each in a record with the same key.

        Args:
            mapper: ``value -> iterable of values``, or ``(key, value) -> ...`` with ``with_key=True``.
            with_key: Whether the mapper also takes the key.
            name: Name of the node.
        """
        node = nodes.FlatMapValues(
            self._graph.name("KSTREAM-FLATMAPVALUES", name), (self._node,), mapper, with_key
        )
        return self._new_values(node)

    def select_key(self, mapper: Callable[[K, V], K2], *, name: str | None = None) -> KStream[K2, V]:
        """Set ``mapper(key, value)`` as the new key of each record; a later grouping repartitions the records."""
        node = nodes.SelectKey(self._graph.name("KSTREAM-KEY-SELECT", name), (self._node,), mapper)
        return KStream(self._graph, self._graph.add(node), None, self._value, rekeyed=True)

    def peek(self, action: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Call ``action(key, value)`` for each record, and forward the record unchanged (KIP-121).

        Records are processed again after a crash, so the function may be called more than once for a record.
        """
        node = nodes.Peek(self._graph.name("KSTREAM-PEEK", name), (self._node,), action)
        return self._same_types(node)

    def foreach(self, action: Callable[[K, V], object], *, name: str | None = None) -> None:
        """Call ``action(key, value)`` for each record; the stream ends here. It may be called again after a crash, as in :meth:`peek`."""
        self._graph.add(nodes.Peek(self._graph.name("KSTREAM-FOREACH", name), (self._node,), action))

    def print(
        self,
        *,
        label: str | None = None,
        text: Callable[[K, V], object] | None = None,
        file: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        """Print each record as ``[label]: key, value``; the stream ends here.

        For development only: on Spark, the lines are in the output of the executors, and records that are processed again are printed
        again.

        Args:
            label: Prefix of each line; None uses the name of the parent node.
            text: ``(key, value) -> text``, printed instead of key and value.
            file: A file on the host of each executor, to which lines are appended; None is standard output.
            name: Name of the node.

        Source: KIP-28, ``KStream.print``; ``org.apache.kafka.streams.kstream.Printed``.
        """
        action = Printing(self._node if label is None else label, text, file)
        self._graph.add(nodes.Peek(self._graph.name("KSTREAM-PRINTER", name), (self._node,), action))

    def merge(self, other: KStream[K, V], *, name: str | None = None) -> KStream[K, V]:
        """Merge two streams of the same builder. Each stream keeps its order; there is no order between the streams."""
        self._graph.check_same(other._graph, "the streams of a merge")
        name = self._graph.name("KSTREAM-MERGE", name)
        node = self._graph.add(nodes.Pass(name, (self._node, other._node)))
        key = self._key if self._key == other._key else None
        value = self._value if self._value == other._value else None
        return KStream(self._graph, node, key, value, rekeyed=self._rekeyed or other._rekeyed)

    def split(self, *, name: str | None = None) -> BranchedKStream[K, V]:
        """Begin to split the stream (KIP-418). Each record goes to the first branch whose predicate is true.

        Args:
            name: Prefix of the names of the branches.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> stream = builder.stream("in")
            >>> branches = stream.split(name="to-").branch(lambda k, v: len(v) > 3, name="long").default(name="short")
            >>> sorted(branches)
            ['to-long', 'to-short']
        """
        return BranchedKStream(self, name)

    def branch(self, *predicates: Callable[[K, V], object]) -> tuple[KStream[K, V], ...]:
        """Split the stream. Each record goes to the first stream whose predicate is true, or is dropped.

        Args:
            predicates: ``(key, value) -> bool``, at least one.

        Returns:
            One stream per predicate, in order. :meth:`split` also has names for the streams, and a stream for all other records.

        Raises:
            TopologyError: If no predicate is given.

        Source: KIP-28, ``KStream.branch``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> long, short = builder.stream("in").branch(lambda k, v: len(v) > 3, lambda k, v: True)
        """
        if not predicates:
            raise TopologyError("branch() returns a stream per predicate; pass at least one predicate")
        split = self.split()
        for predicate in predicates:
            split.branch(predicate)
        return tuple(split.no_default().values())

    def to(
        self,
        topic: str | TopicNameExtractor,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: StreamPartitioner | None = None,
        fan_out: bool = False,
        name: str | None = None,
    ) -> None:
        """Send the records to a topic, with their timestamps and headers.

        Args:
            topic: A topic, or a function of key, value and ``RecordContext`` that returns a topic.
            key: Serde of the keys; None uses the serde known from upstream, else the builder's default.
            value: Serde of the values; None as for ``key``.
            partitioner: ``(topic, key, value, partitions) -> partition``, several partitions (each receives the record; no partition drops
                and counts it), or None for the choice of Java producers, which is the default. With a serde of windowed keys, the default
                sends all windows of a key to one partition. ``partitions`` is 0 for a function's topic that did not exist at the start.
            fan_out: Whether partitions of the topic may be split by key range. Only for a fixed topic, under at-least-once delivery.
            name: Name of the sink node.
        """
        key, value = self._serdes(key, value)
        sink = self._graph.name("KSTREAM-SINK", name)
        windows = window_bytes(key) if partitioner is None else 0
        self._graph.topology.add(Sink(sink, (self._node,), topic, key, value, partitioner, windows, fan_out))

    def through(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: StreamPartitioner | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Send the records to a topic and read them from it again: ``to`` followed by ``StreamsBuilder.stream``.

        The topic is yours: it must exist, other applications may read and write it, and a reset of the application does not delete it. For
        an internal topic, see :meth:`repartition`.

        Args:
            topic: The topic.
            key: Serde of the keys; None as in :meth:`to`.
            value: Serde of the values; None as in :meth:`to`.
            partitioner: As in :meth:`to`.
            name: Name of the source; the sink is named ``<name>-sink``.

        Returns:
            The records of the topic, in its partitions. They are not repartitioned by keys that were changed upstream.

        Raises:
            TopologyError: If the name is in use, or the topic is read with other options; see ``StreamsBuilder.stream``.

        Source: KIP-28, ``KStream.through``.
        """
        key, value = self._serdes(key, value)
        sink = None if name is None else f"{name}-sink"
        self.to(topic, key=key, value=value, partitioner=partitioner, name=sink)
        node = self._graph.name("KSTREAM-SOURCE", name)
        source = nodes.Source(node, (), (topic,), key, value)
        return KStream(self._graph, self._graph.read(source), key, value, rekeyed=False)

    def repartition(
        self,
        *,
        name: str | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitions: int | None = None,
        partitioner: StreamPartitioner | None = None,
    ) -> KStream[K, V]:
        """Send each record to the partition of its key, through ``<application id>-<name>-repartition`` (KIP-221).

        Records without a key have no partition. They are dropped and counted, unless a left or outer join of a stream follows anywhere
        downstream: then they are forwarded to any partition (KIP-962).

        Args:
            name: Name of the repartition.
            key: Serde of the keys; None as in :meth:`to`.
            value: Serde of the values; None as in :meth:`to`.
            partitions: Number of partitions, at least 1; None uses the number of the upstream source topics.
            partitioner: As in :meth:`to`. The state of a key is in the task of its records, so all records of a key should go to one
                partition. Return several partitions only for records that every task needs.

        Raises:
            TopologyError: If the number of partitions is invalid or the name is in use.
        """
        if partitions is not None and partitions < 1:
            raise TopologyError(f"repartition(partitions={partitions}): a topic has at least one partition")
        key, value = self._serdes(key, value)
        graph, path, topic_name = self._graph, self._path, name
        if topic_name is None:
            suffix = "" if self._rekeyed else "-repartitioned"
            topic_name = graph.names.generate(graph.name("KSTREAM-REPARTITION"), path + suffix)
        node = graph.repartition(
            self._node, topic_name, key, value, partitions, drop_null_keys=True, partitioner=partitioner
        )
        graph.begin(node, name or path)
        return KStream(graph, node, key, value, rekeyed=False)

    def group_by(
        self,
        mapper: Callable[[K, V], K2],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]:
        """Group the records by a new key; an aggregation repartitions them.

        Args:
            mapper: ``(key, value) -> new key``; records whose new key is None are dropped.
            key: Serde of the new keys; None uses the builder's default.
            value: Serde of the values; None uses the serde known from upstream, else the builder's default.
            name: Name of the repartition and of the node that changes the key; None names the repartition after the
                aggregation's store.
        """
        graph = self._graph
        node = graph.add(nodes.SelectKey(graph.name("KSTREAM-KEY-SELECT", name), (self._node,), mapper))
        serdes = key or graph.default_key, value or self._value or graph.default_value
        return KGroupedStream(Grouping(graph, node, serdes, name=name, rekeyed=True))

    def group_by_key(
        self, *, key: Serde[K] | None = None, value: Serde[V] | None = None, name: str | None = None
    ) -> KGroupedStream[K, V]:
        """Group the records by their key; an aggregation repartitions them only if the key was changed upstream.

        Args:
            key: Serde of the keys; None uses the serde known from upstream, else the builder's default.
            value: Serde of the values; None as for ``key``.
            name: Name of the repartition; None uses the name of the aggregation's store.
        """
        serdes = self._serdes(key, value)
        return KGroupedStream(Grouping(self._graph, self._node, serdes, name=name, rekeyed=self._rekeyed))

    def to_table(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Turn the stream into a table with the newest value per key; a null value deletes the key (KIP-523).

        Args:
            key: Serde of the keys; None uses the serde known from upstream, else the builder's default.
            value: Serde of the values; None as for ``key``.
            store: Name of the store of the table.
            name: Name of the node.
        """
        graph = self._graph
        key, value = self._serdes(key, value)
        node, path = graph.name("KSTREAM-TOTABLE", name), self._path
        options = graph.store_options(
            store, lambda: graph.names.store("KSTREAM-TOTABLE"), path, "table", name
        )
        spec = graph.table_store(options, key, value)
        parent = self._node
        if self._rekeyed:
            topic = (name or graph.names.generate(node, "")) if graph.names.numbered else spec.name
            parent = graph.repartition(parent, topic, key, value, drop_null_keys=True)
        graph.add(nodes.TableSource(node, (parent,), spec))
        graph.begin(node, path if store is None else spec.name, name)
        return graph.table(node, key, value)

    def _same_types(self, node: nodes.Node) -> KStream[K, V]:
        return KStream(self._graph, self._graph.add(node), self._key, self._value, rekeyed=self._rekeyed)

    def _new_values(self, node: nodes.Node) -> KStream[K, Any]:
        return KStream(self._graph, self._graph.add(node), self._key, None, rekeyed=self._rekeyed)
