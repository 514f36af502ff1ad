"""KStream: a stream of records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from millstream.core.asynchronous.effects import CallContext
from millstream.core.dsl import asynchronous
from millstream.core.dsl.branched import BranchedKStream
from millstream.core.dsl.grouped import KGroupedStream
from millstream.core.dsl.joinable import JoinableStream
from millstream.core.dsl.printing import Printing
from millstream.core.model.arguments import checked_methods
from millstream.core.model.calls import Answer, CallOptions, Calls
from millstream.core.model.durations import Duration
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import Record
from millstream.core.model.serdes import Serde, window_bytes
from millstream.core.topology import nodes
from millstream.core.topology.asynchronous import MAX_UNACKNOWLEDGED
from millstream.core.topology.nodes import Process, Sink, StreamPartitioner, TopicNameExtractor
from millstream.core.topology.processor import ProcessValues
from millstream.core.topology.stores import Kept

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.core.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")


@checked_methods
class KStream(JoinableStream[K, V]):
    """A stream of records: every record counts by itself. Made by ``StreamsBuilder.stream``.

    Operators give new streams and leave this one as it is. Functions get keys and values as objects; None stands for null.

    Source: KIP-28, "High-level Stream DSL"; ``org.apache.kafka.streams.kstream.KStream``.
    """

    def filter(self, predicate: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Keep the records for which a predicate of key and value holds."""
        node = nodes.Filter(self._graph.name("KSTREAM-FILTER", name), (self._node,), predicate)
        return self._same_types(node)

    def filter_not(self, predicate: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Keep the records for which a predicate of key and value does not hold."""
        node = nodes.Filter(self._graph.name("KSTREAM-FILTER", name), (self._node,), predicate, keep=False)
        return self._same_types(node)

    def map(self, mapper: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None) -> KStream[K2, V2]:
        """Turn key and value into another key and value; a grouping behind it repartitions.

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
        """Turn the value into another value; the key stays, so nothing is repartitioned.

        Args:
            mapper: ``value -> value``, or ``(key, value) -> value`` with ``with_key=True``.
            with_key: Whether the mapper wants the key too.
            name: Name of the node.
        """
        node = nodes.MapValues(self._graph.name("KSTREAM-MAPVALUES", name), (self._node,), mapper, with_key)
        return self._new_values(node)

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Turn a record into any number of records; a grouping behind it repartitions.

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
        """Turn the value into any number of values, each a record with the same key.

        Args:
            mapper: ``value -> iterable of values``, or ``(key, value) -> ...`` with ``with_key=True``.
            with_key: Whether the mapper wants the key too.
            name: Name of the node.
        """
        node = nodes.FlatMapValues(
            self._graph.name("KSTREAM-FLATMAPVALUES", name), (self._node,), mapper, with_key
        )
        return self._new_values(node)

    def select_key(self, mapper: Callable[[K, V], K2], *, name: str | None = None) -> KStream[K2, V]:
        """Give each record a new key; a grouping behind it repartitions."""
        node = nodes.SelectKey(self._graph.name("KSTREAM-KEY-SELECT", name), (self._node,), mapper)
        return KStream(self._graph, self._graph.add(node), None, self._value, rekeyed=True)

    def peek(self, action: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Call a function with key and value of each record, and hand the record on unchanged.

        After a crash records are processed again, so the function may see a record more than once.
        """
        node = nodes.Peek(self._graph.name("KSTREAM-PEEK", name), (self._node,), action)
        return self._same_types(node)

    def foreach(self, action: Callable[[K, V], object], *, name: str | None = None) -> None:
        """Call a function with key and value of each record; the stream ends here."""
        self._graph.add(nodes.Peek(self._graph.name("KSTREAM-FOREACH", name), (self._node,), action))

    def print(
        self,
        *,
        label: str | None = None,
        text: Callable[[K, V], object] | None = None,
        file: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        """Print each record, as ``[label]: key, value``; the stream ends here.

        It is there for development: on Spark the lines appear where the executors write, and records that are processed
        again are printed again.

        Args:
            label: What each line begins with; None is the name of the node in front.
            text: ``(key, value) -> what to print`` in place of both.
            file: A file that the lines are added to, on the host of each executor; None is standard output.
            name: Name of the node.

        Source: KIP-28, ``KStream.print``; ``org.apache.kafka.streams.kstream.Printed``.
        """
        action = Printing(self._node if label is None else label, text, file)
        self._graph.add(nodes.Peek(self._graph.name("KSTREAM-PRINTER", name), (self._node,), action))

    def merge(self, other: KStream[K, V], *, name: str | None = None) -> KStream[K, V]:
        """Put two streams together; the order of each is kept, there is none between them."""
        node = nodes.Pass(self._graph.name("KSTREAM-MERGE", name), (self._node, other._node))
        key = self._key if self._key == other._key else None
        value = self._value if self._value == other._value else None
        rekeyed = self._rekeyed or other._rekeyed
        return KStream(self._graph, self._graph.add(node), key, value, rekeyed=rekeyed)

    def split(self, *, name: str | None = None) -> BranchedKStream[K, V]:
        """Begin to split the stream: each record goes to the first branch whose predicate holds.

        Args:
            name: What the names of the branches begin with.

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
        """Split the stream: each record goes to the first stream whose predicate holds, and to none if no predicate does.

        Args:
            predicates: Of key and value, at least one.

        Returns:
            A stream per predicate, in their order. :meth:`split` gives them names, and a stream for the rest.

        Raises:
            TopologyError: If there is no predicate.

        Source: KIP-28, ``KStream.branch``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> long, short = builder.stream("in").branch(lambda k, v: len(v) > 3, lambda k, v: True)
        """
        if not predicates:
            raise TopologyError("branch() gives a stream per predicate; give it at least one")
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
        name: str | None = None,
    ) -> None:
        """Send the records to a topic, with their timestamps and headers.

        Args:
            topic: A topic, or a function of key, value and ``RecordContext`` that names one.
            key: Serde of the keys; None takes what is known from upstream, else the builder's default.
            value: Serde of the values; None likewise.
            partitioner: ``(topic, key, value, partitions) -> partition``; or to several partitions, each of which gets the record
                (none drops and counts it), or to None, which does as Java producers do. None for all records is the same, but
                that all windows of a key go to the partition of the key, if ``key`` is a serde of windowed keys.
                ``partitions`` is 0 for a topic that a function names and that was not there when the application was started.
            name: Name of the sink node.
        """
        key = key or self._key or self._graph.default_key
        value = value or self._value or self._graph.default_value
        sink = self._graph.name("KSTREAM-SINK", name)
        windows = window_bytes(key) if partitioner is None else 0
        self._graph.topology.add(Sink(sink, (self._node,), topic, key, value, partitioner, windows))

    def through(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: StreamPartitioner | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Send the records to a topic and read them from there again: ``to`` and ``StreamsBuilder.stream`` in one.

        The topic is yours: it has to be there, others may read it and write to it, and it stays when the application is
        reset. For a topic that is only the application's own, see :meth:`repartition`.

        Args:
            topic: The topic.
            key: Serde of the keys; None as in :meth:`to`.
            value: Serde of the values; None as in :meth:`to`.
            partitioner: As in :meth:`to`.
            name: Name of the node that reads; that of the sink is ``<name>-sink``.

        Returns:
            What is read from the topic, by partitions of that topic. Nothing behind it repartitions for keys that were changed in
            front of it.

        Raises:
            TopologyError: If the name is taken, or the topic is read in another way; see ``StreamsBuilder.stream``.

        Source: KIP-28, ``KStream.through``.
        """
        key, value = (
            key or self._key or self._graph.default_key,
            value or self._value or self._graph.default_value,
        )
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
        """Bring each record to the partition its key belongs to, through ``<application id>-<name>-repartition``.

        Records without a key belong to no partition; they are left out and counted as dropped. Only where a left or outer join of a
        stream follows, however far behind, they go on, to any partition (KIP-962).

        Args:
            name: Name of the repartition.
            key: Serde of the keys; None as in :meth:`to`.
            value: Serde of the values; None as in :meth:`to`.
            partitions: Number of partitions, at least 1; None takes that of the topics read upstream.
            partitioner: As in :meth:`to`. Whatever keeps state behind it has the state of a key where its records are, so all records
                of a key should go to one partition; to several of them is for what every task has to see.

        Raises:
            TopologyError: If the number of partitions is impossible or the name is taken.
        """
        if partitions is not None and partitions < 1:
            raise TopologyError(f"repartition(partitions={partitions}): a topic has at least one partition")
        key, value = (
            key or self._key or self._graph.default_key,
            value or self._value or self._graph.default_value,
        )
        graph, path, topic_name = self._graph, self._path, name
        if topic_name is None:
            word = "" if self._rekeyed else "-repartitioned"
            topic_name = graph.names.kept(graph.name("KSTREAM-REPARTITION"), path + word)
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
        """Group the records by a new key; an aggregation behind it repartitions.

        Args:
            mapper: ``(key, value) -> new key``; records whose new key is None are left out.
            key: Serde of the new keys; None is the builder's default.
            value: Serde of the values; None takes what is known from upstream, else the builder's default.
            name: Name of the repartition and of the node that changes the key; None takes the name of the aggregation's
                store for the repartition.
        """
        node = self._graph.add(
            nodes.SelectKey(self._graph.name("KSTREAM-KEY-SELECT", name), (self._node,), mapper)
        )
        return self._grouped(node, key or self._graph.default_key, value, name, rekeyed=True)

    def group_by_key(
        self, *, key: Serde[K] | None = None, value: Serde[V] | None = None, name: str | None = None
    ) -> KGroupedStream[K, V]:
        """Group the records by their key; an aggregation repartitions only if the key was changed upstream.

        Args:
            key: Serde of the keys; None takes what is known from upstream, else the builder's default.
            value: Serde of the values; None likewise.
            name: Name of the repartition; None takes the name of the aggregation's store.
        """
        key = key or self._key or self._graph.default_key
        return self._grouped(self._node, key, value, name, rekeyed=self._rekeyed)

    def to_table(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: Kept | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Take the newest value per key as a table; a null value deletes the key.

        Args:
            key: Serde of the keys; None takes what is known from upstream, else the builder's default.
            value: Serde of the values; None likewise.
            store: Name of the store of the table.
            name: Name of the node.
        """
        from millstream.core.dsl.ktable import KTable  # a table gives streams and a stream gives tables

        graph = self._graph
        key, value = key or self._key or graph.default_key, value or self._value or graph.default_value
        node, path = graph.name("KSTREAM-TOTABLE", name), self._path
        kept = graph.kept_as(store, lambda: graph.names.store("KSTREAM-TOTABLE"), path, "table", name)
        spec = graph.add_table_store(kept, key, value)
        parent = self._node
        if self._rekeyed:
            topic = spec.name
            if graph.names.numbered:
                topic = name or graph.names.kept(node, "")
            parent = graph.repartition(parent, topic, key, value, drop_null_keys=True)
        graph.add(nodes.TableSource(node, (parent,), spec))
        graph.begin(node, path if store is None else spec.name, name)
        return KTable(graph, node, key, value)

    def process(
        self,
        supplier: Callable[[], Any],
        *,
        stores: Iterable[str] = (),
        calls: Calls | None = None,
        acknowledges: bool = False,
        max_unacknowledged: int = MAX_UNACKNOWLEDGED,
        key_local: bool = False,
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Run a processor on every record; what it forwards is the new stream.

        Args:
            supplier: A class derived from ``Processor``, or a function that makes a new one.
            stores: Names of the stores it uses, beside those that the class brings along in its attribute ``stores``; global stores
                it reads without naming them.
            calls: How the calls are made that it issues (``context.issue``); None if it issues none.
            acknowledges: Whether it says itself when a record is finished (``context.acknowledge``). What is not acknowledged is given
                again to each new processor, which every micro-batch on Spark has.
            max_unacknowledged: While so many records of a task are not acknowledged, no more are read for it; what a micro-batch
                has read already comes on top of them.
            key_local: Whether the processor promises to touch nothing but the entries of its record's key. Only then may
                ``parallelism`` divide its partitions into key ranges; the promise is checked when it uses a store.
            name: Name of the node.

        Returns:
            The forwarded records, with keys and values of types that only the processor knows.
        """
        node = self._processor(
            Process,
            supplier,
            stores,
            name=name,
            calls=calls,
            acknowledges=acknowledges,
            max_unacknowledged=max_unacknowledged,
            key_local=key_local,
        )
        return KStream(self._graph, node, None, None, rekeyed=True)

    def process_values(
        self,
        supplier: Callable[[], Any],
        *,
        stores: Iterable[str] = (),
        key_local: bool = False,
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Run a processor that leaves the keys as they are; a grouping behind it does not repartition.

        Args:
            supplier: As in :meth:`process`; what it forwards must have the key it was given. Another one fails the record, since
                it would be in a partition, and in front of state, where it does not belong. A punctuator answers for its keys itself.
            stores: As in :meth:`process`.
            key_local: As in :meth:`process`.
            name: Name of the node.

        Source: ``KStream.processValues``; ``FixedKeyProcessor`` (KIP-820).
        """
        node = self._processor(ProcessValues, supplier, stores, name=name, key_local=key_local)
        return KStream(self._graph, node, self._key, None, rekeyed=self._rekeyed)

    def _processor(
        self, kind: type[Process], supplier: Callable[[], Any], stores: Iterable[str], **options: Any
    ) -> str:
        serdes = self._key, self._value
        return self._graph.add_processor(kind, (self._node, self._path), supplier, stores, serdes, **options)

    @overload
    def map_values_async(
        self,
        function: Callable[[V], Awaitable[V2 | Answer]],
        *,
        with_key: Literal[False] = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        function: Callable[[K, V], Awaitable[V2 | Answer]],
        *,
        with_key: Literal[True],
        store: Kept | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        function: Callable[[V], V2 | Answer],
        *,
        with_key: Literal[False] = ...,
        store: Kept | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        function: Callable[[K, V], V2 | Answer],
        *,
        with_key: Literal[True],
        store: Kept | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        function: Callable[..., Any],
        *,
        with_key: bool = ...,
        batch: tuple[int, Duration],
        store: Kept | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, Any]: ...

    def map_values_async(
        self,
        function: Callable[..., Any],
        *,
        with_key: bool = False,
        batch: tuple[int, Duration] | None = None,
        store: Kept | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, Any]:
        """Turn the value into the result of a call of the outside world; records do not wait for each other's calls.

        A record goes on when its call has ended and the order allows it. Its offset is not committed before.

        Args:
            function: ``value -> value``, or ``(key, value) -> value`` with ``with_key=True``: a coroutine function, or a plain
                one, which runs in a pool of threads. It may return ``ms.retry()``, ``ms.delay(...)``, ``ms.dead_letter(...)``
                or ``ms.skip()``. With ``batch=...`` it gets lists, and returns a list.
            with_key: Whether the function wants the key too.
            batch: ``(max_records, max_wait)``: one call takes up to so many records, and waits so long for them.
            store: Name of the store of unfinished records, or how it is kept.
            name: Name of the node.
            options: How calls are made; see :class:`millstream.Calls`.

        Raises:
            TopologyError: If an option is impossible.

        Source: KIP-311.

        Example:
            >>> import millstream as ms
            >>> async def price(product):
            ...     return {"tea": 3}[product]
            >>> builder = ms.StreamsBuilder()
            >>> prices = builder.stream("orders").map_values_async(price, timeout=1000, retry=ms.Retry(max_attempts=3))
            >>> prices.to("prices", value=ms.serdes.int64)
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> driver.pipe("orders", "anna", "tea")
            >>> driver.read("prices")
            [Record(key='anna', value=3, timestamp=0, headers=())]
        """
        node = asynchronous.map_values_async(
            self, function, with_key=with_key, batch=batch, store=store, name=name, **options
        )
        return KStream(self._graph, node, self._key, None, rekeyed=self._rekeyed)

    @overload
    def foreach_async(
        self,
        function: Callable[[K, V], object],
        *,
        store: Kept | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> None: ...

    @overload
    def foreach_async(
        self,
        function: Callable[[list[K], list[V]], object],
        *,
        batch: tuple[int, Duration],
        store: Kept | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> None: ...

    def foreach_async(
        self,
        function: Callable[..., object],
        *,
        batch: tuple[int, Duration] | None = None,
        store: Kept | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Call the outside world with key and value of each record; the stream ends here.

        Args:
            function: ``(key, value) -> anything``, as in :meth:`map_values_async`; only its answers mean something.
            batch: As in :meth:`map_values_async`: the function gets a list of keys and one of values; None means
                that all are done.
            store: Name of the store of unfinished records, or how it is kept.
            name: Name of the node.
            options: How calls are made; see :class:`millstream.Calls`.

        Raises:
            TopologyError: If an option is impossible.
        """
        asynchronous.foreach_async(self, function, batch=batch, store=store, name=name, **options)

    def process_async(
        self,
        function: Callable[[Record[K, V], CallContext], Awaitable[Answer | None] | Answer | None],
        *,
        stores: Iterable[str] = (),
        store: Kept | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[Any, Any]:
        """Call a function that may write to stores and forward; what it forwards is the new stream.

        What the function writes and forwards is applied when the record retires: all of it in one step, in the order in which the
        function did it. Its reads see its own writes. If it fails, nothing of it is applied.

        Args:
            function: ``(record, context) -> None``, as in :meth:`map_values_async`; see :class:`millstream.CallContext`.
            stores: Names of key-value stores it uses; it reads the entry of its record's key.
            store: Name of the store of unfinished records, or how it is kept.
            name: Name of the node.
            options: How calls are made; see :class:`millstream.Calls`.

        Returns:
            The forwarded records, with keys and values of types that only the function knows.

        Raises:
            TopologyError: If an option is impossible, or a store is no key-value store.
        """
        node = asynchronous.process_async(self, function, stores=stores, store=store, name=name, **options)
        return KStream(self._graph, node, None, None, rekeyed=True)

    def _grouped(
        self, node: str, key: Serde[Any], value: Serde[Any] | None, name: str | None, *, rekeyed: bool
    ) -> KGroupedStream[Any, V]:
        value = value or self._value or self._graph.default_value
        return KGroupedStream(self._graph, node, key, value, repartition=rekeyed, name=name)

    @property
    def _path(self) -> str:
        return self._graph.path(self._node, rekeyed=self._rekeyed)

    def _same_types(self, node: nodes.Node) -> KStream[K, V]:
        return KStream(self._graph, self._graph.add(node), self._key, self._value, rekeyed=self._rekeyed)

    def _new_values(self, node: nodes.Node) -> KStream[K, Any]:
        return KStream(self._graph, self._graph.add(node), self._key, None, rekeyed=self._rekeyed)
