"""Processors and asynchronous functions of a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload

from millstream.core.asynchronous.effects import CallContext
from millstream.core.dsl.handle import StreamHandle
from millstream.core.dsl.operators import async_operators
from millstream.core.dsl.operators.async_operators import AsyncFunction
from millstream.core.model.arguments import checked_methods
from millstream.core.model.calls import Answer, CallOptions, Calls
from millstream.core.model.durations import Duration
from millstream.core.model.record import V2, K, Record, V
from millstream.core.topology.async_nodes import MAX_UNACKNOWLEDGED, Completion
from millstream.core.topology.checks import checked_supplier
from millstream.core.topology.nodes import Process
from millstream.core.topology.processor import ProcessValues
from millstream.core.topology.stores import StoreLike

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream


_P = TypeVar("_P", bound=Process)
_KINDS: Final[dict[type[Process], tuple[str, str]]] = {
    Process: ("KSTREAM-PROCESSOR", "process"),
    ProcessValues: ("KSTREAM-PROCESSVALUES", "process-values"),
}
"""For each kind of node: the kind in its numbered name, and its word in a path."""


@checked_methods
class ProcessableStream(StreamHandle[K, V]):
    """The methods of ``KStream`` that run processors and asynchronous functions."""

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
        """Run a processor on each record. The forwarded records are the new stream.

        Args:
            supplier: A class derived from ``Processor``, or a function that returns a new processor.
            stores: Names of the stores that it uses, in addition to those in the attribute ``stores`` of the class. Global stores need
                not be named.
            calls: Options of the calls that it issues (``context.issue``); None if it issues no calls.
            acknowledges: Whether it acknowledges finished records itself (``context.acknowledge``). Each new processor receives
                unacknowledged records again; on Spark, each micro-batch has a new processor.
            max_unacknowledged: Number of unacknowledged records of a task above which no more are read for it. Records that a
                micro-batch has already read come in addition.
            key_local: Whether the processor accesses only entries with the key of its record. Only then may ``parallelism`` divide
                its partitions into key ranges. The processor is checked when it uses a store.
            name: Name of the node.

        Returns:
            The forwarded records, whose types only the processor knows.

        Raises:
            TopologyError: If the supplier returns the same processor twice, a store was never added, or a name is in use.

        Source: ``KStream.process`` (KIP-820).

        Example:
            >>> import millstream as ms
            >>> class Twice(ms.Processor[str, str, str, str]):
            ...     def process(self, record):
            ...         self.context.forward(record)
            ...         self.context.forward(record.with_value(record.value.upper()))
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").process(Twice).to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> driver.pipe("in", "k", "v")
            >>> [record.value for record in driver.read("out")]
            ['v', 'V']
        """
        process = self._processor(Process, supplier, stores, name, key_local=key_local)
        node = Completion(calls, acknowledges, max_unacknowledged).node(process, self._serdes())
        return self._graph.stream(self._graph.add_supplied(node), None, None, rekeyed=True)

    def process_values(
        self,
        supplier: Callable[[], Any],
        *,
        stores: Iterable[str] = (),
        key_local: bool = False,
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Run a processor that does not change keys, so that a later grouping does not repartition.

        Args:
            supplier: As in :meth:`process`; it must forward records with the key of its input. Another key fails the record, because
                the record would reach the partition, and the state, of other keys. Another object is the same key if the stream's key
                serde writes the same bytes for it; if the serde is not known here, it must have the same type and be equal. Records
                that a punctuator forwards are not checked.
            stores: As in :meth:`process`.
            key_local: As in :meth:`process`.
            name: Name of the node.

        Returns:
            The forwarded records, with the same keys.

        Raises:
            TopologyError: As in :meth:`process`.

        Source: ``KStream.processValues``; ``FixedKeyProcessor`` (KIP-820).

        Example:
            >>> import millstream as ms
            >>> class Upper(ms.Processor[str, str, str, str]):
            ...     def process(self, record):
            ...         self.context.forward(record.with_value(record.value.upper()))
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").process_values(Upper).to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> driver.pipe("in", "k", "v")
            >>> [record.value for record in driver.read("out")]
            ['V']
        """
        plain = self._processor(ProcessValues, supplier, stores, name, key_local=key_local)
        node = replace(plain, key=self._key)
        return self._graph.stream(self._graph.add_supplied(node), self._key, None, rekeyed=self._rekeyed)

    def _processor(
        self,
        kind: type[_P],
        supplier: Callable[[], Any],
        stores: Iterable[str],
        name: str | None,
        *,
        key_local: bool,
    ) -> _P:
        graph, (numbered, word) = self._graph, _KINDS[kind]
        node = graph.name(numbered, name)
        if name is None:  # its schedules are looked up by this name
            node = graph.names.generate(node, f"{self._path}-{word}")
        supplier = checked_supplier(node, supplier)
        return kind(node, (self._node,), supplier, tuple(stores), key_local=key_local)

    @overload
    def map_values_async(
        self,
        function: Callable[[V], Awaitable[V2 | Answer]],
        *,
        with_key: Literal[False] = ...,
        store: StoreLike | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        function: Callable[[K, V], Awaitable[V2 | Answer]],
        *,
        with_key: Literal[True],
        store: StoreLike | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        function: Callable[[V], V2 | Answer],
        *,
        with_key: Literal[False] = ...,
        store: StoreLike | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        function: Callable[[K, V], V2 | Answer],
        *,
        with_key: Literal[True],
        store: StoreLike | None = ...,
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
        store: StoreLike | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> KStream[K, Any]: ...

    def map_values_async(
        self,
        function: Callable[..., Any],
        *,
        with_key: bool = False,
        batch: tuple[int, Duration] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, Any]:
        """Map each value to the result of a call outside the task. Records do not wait for each other's calls.

        A record is forwarded when its call has ended and the order allows it. Its offset is committed only afterwards.

        Args:
            function: ``value -> value``, or ``(key, value) -> value`` with ``with_key=True``: a coroutine function, or a plain
                function, which runs in a thread pool. It may return ``ms.retry()``, ``ms.delay(...)``, ``ms.dead_letter(...)``
                or ``ms.skip()``. With ``batch=...``, it receives lists and returns a list.
            with_key: Whether the function also takes the key.
            batch: ``(max_records, max_wait)``: the maximum number of records per call, and how long a call waits for them (a timedelta, or
                milliseconds).
            store: Name of the store of unfinished records, or a name with options.
            name: Name of the node.
            options: Options of the calls; see :class:`millstream.Calls`.

        Returns:
            The records with the results of their calls, in the order that the option ``order`` requests.

        Raises:
            TopologyError: If an option is invalid.

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
        called = AsyncFunction(function, Calls(**options, batch=batch), store, name)
        node = async_operators.map_values_async(self, called, with_key=with_key)
        return self._graph.stream(node, self._key, None, rekeyed=self._rekeyed)

    @overload
    def foreach_async(
        self,
        function: Callable[[K, V], object],
        *,
        store: StoreLike | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> None: ...

    @overload
    def foreach_async(
        self,
        function: Callable[[list[K], list[V]], object],
        *,
        batch: tuple[int, Duration],
        store: StoreLike | None = ...,
        name: str | None = ...,
        **options: Unpack[CallOptions],
    ) -> None: ...

    def foreach_async(
        self,
        function: Callable[..., object],
        *,
        batch: tuple[int, Duration] | None = None,
        store: StoreLike | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Call a function outside the task for each record; the stream ends here.

        Args:
            function: ``(key, value) -> anything``, as in :meth:`map_values_async`. Only answers such as ``ms.retry()`` have an effect.
            batch: As in :meth:`map_values_async`. The function receives a list of keys and a list of values, and returns None if all
                records are finished.
            store: As in :meth:`map_values_async`.
            name: Name of the node.
            options: Options of the calls; see :class:`millstream.Calls`.

        Raises:
            TopologyError: If an option is invalid.

        Source: KIP-311, for calls that have no result.

        Example:
            >>> import millstream as ms
            >>> builder, sent = ms.StreamsBuilder(), []
            >>> builder.stream("mails").foreach_async(lambda address, text: sent.append((address, text)))
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> driver.pipe("mails", "ann", "hello")
            >>> sent
            [('ann', 'hello')]
        """
        called = AsyncFunction(function, Calls(**options, batch=batch), store, name)
        async_operators.foreach_async(self, called)

    def process_async(
        self,
        function: Callable[[Record[K, V], CallContext], Awaitable[Answer | None] | Answer | None],
        *,
        stores: Iterable[str] = (),
        store: StoreLike | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[Any, Any]:
        """Call a function that may write to stores and forward records. The forwarded records are the new stream.

        Its writes and forwarded records take effect when the record retires: atomically, in the order in which the function made them. Its
        reads include its own writes. If it fails, it has no effect. For an example, see :class:`millstream.CallContext`.

        Args:
            function: ``(record, context) -> None``, as in :meth:`map_values_async`; see :class:`millstream.CallContext`.
            stores: Names of the key-value stores that it uses. It reads and writes the entry of its record's key only, and no operator
                may use these stores that receives records from elsewhere.
            store: As in :meth:`map_values_async`.
            name: Name of the node.
            options: Options of the calls; see :class:`millstream.Calls`.

        Returns:
            The forwarded records, whose types only the function knows.

        Raises:
            TopologyError: If an option is invalid, or a store is not a key-value store.

        Source: KIP-311, for functions that use stores.
        """
        called = AsyncFunction(function, Calls(**options), store, name)
        node = async_operators.process_async(self, called, stores)
        return self._graph.stream(node, None, None, rekeyed=True)
