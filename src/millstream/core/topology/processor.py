"""Processors: base classes for users, and the processor context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, overload

from millstream.core.model.durations import Duration
from millstream.core.model.ids import TaskId
from millstream.core.model.record import K2, V2, K, Record, RecordMetadata, V
from millstream.core.model.serdes import Serde
from millstream.core.topology.nodes import Process
from millstream.core.topology.stores import StoreOf, StoreSpec

S = TypeVar("S")


Wrap: TypeAlias = Callable[[str, Callable[[], Any]], Callable[[], Any]]
"""Maps the name of a node and its processor supplier to a replacement supplier (``ProcessorWrapper``, KIP-1112)."""


class PunctuationType(Enum):
    """The clock that a schedule follows.

    Source: ``org.apache.kafka.streams.processor.PunctuationType`` (KIP-138).
    """

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


stream_time = PunctuationType.STREAM_TIME
"""Follow stream time: the timestamps of the records."""
wall_clock = PunctuationType.WALL_CLOCK_TIME
"""Follow wall-clock time."""

Punctuator = Callable[[int], object]
"""Called with the current stream time or wall-clock time in ms (``Punctuator``)."""


class Cancellable(Protocol):
    """A schedule that can be cancelled. Returned by ``ProcessorContext.schedule``.

    Source: ``org.apache.kafka.streams.processor.Cancellable``.
    """

    def cancel(self) -> None:
        """Stop calling the function. A second call has no effect."""


class ProcessorContext(Protocol[K2, V2]):
    """The interface through which a processor accesses its task.

    Source: KIP-28, "API Design"; ``org.apache.kafka.streams.processor.api.ProcessorContext``.
    """

    @property
    def application_id(self) -> str:
        """The application's id (``applicationId``)."""

    @property
    def app_config(self) -> Mapping[str, Any]:
        """The user's configuration for processors, from the application's setting ``app_config`` (``appConfigs``)."""

    @property
    def task_id(self) -> TaskId:
        """The task to which this processor belongs; ``str(task_id)`` is like ``0_3`` (``taskId``)."""

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the record being processed; None in a punctuator (``recordMetadata``)."""

    @property
    def stream_time_ms(self) -> int:
        """The largest timestamp that the task has processed, ms since the epoch; -1 before the first record.

        Raises:
            ProcessingError: In a processor that maintains a global store, because its copies have different positions.

        Source: ``ProcessorContext.currentStreamTimeMs`` (KIP-622).
        """

    @property
    def wall_clock_ms(self) -> int:
        """Wall-clock time when the micro-batch was planned, ms since the epoch.

        Source: ``ProcessorContext.currentSystemTimeMs`` (KIP-622).
        """

    def forward(self, record: Record[K2, V2], child: str | None = None) -> None:
        """Forward a record to all children, or to the named child, and return after they have processed it.

        For an example, see :class:`Processor`.

        Args:
            record: The record.
            child: Name of the child; None forwards to all.

        Raises:
            ProcessingError: If there is no child of that name, or no record is being processed.

        Source: ``ProcessorContext.forward``; KIP-251 for the timestamp of the record.
        """

    def schedule(
        self,
        interval: Duration,
        kind: PunctuationType,
        callback: Punctuator,
        *,
        start_time: int | None = None,
    ) -> Cancellable:
        """Call a function periodically as time advances.

        Args:
            interval: Interval, at least 1 ms; ``timedelta`` or ms.
            kind: ``ms.stream_time`` or ``ms.wall_clock``.
            callback: Called with the current time of that kind in ms. If ``schedule`` is not called in ``init``, the callback must be a
                method of the processor, so that later micro-batches can find it.
            start_time: First due time, ms since the epoch; None is 0 for stream time, now + interval for the wall clock.

        Returns:
            A handle to cancel the schedule.

        Raises:
            ValueError: If the interval is below 1 ms.
            ProcessingError: If a later micro-batch could not find the callback.

        Source: ``ProcessorContext.schedule`` (KIP-138); KIP-1146 for ``start_time``.

        Example:
            >>> import millstream as ms
            >>> class Ticks(ms.Processor[str, str, str, int]):
            ...     def init(self, context):
            ...         super().init(context)
            ...         context.schedule(1000, ms.stream_time, self.tick)
            ...     def process(self, record): ...
            ...     def tick(self, now):
            ...         self.context.forward(ms.Record("tick", now, now))
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").process(Ticks).to("out", value=ms.serdes.int64)
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp in (0, 500, 1200):
            ...     driver.pipe("in", "k", "v", timestamp)
            >>> [record.value for record in driver.read("out")]
            [0, 1200]
        """

    def scheduled(self, callback: Punctuator) -> tuple[Cancellable, ...]:
        """Return this processor's schedules of a function, including those of earlier micro-batches.

        The result of ``schedule`` is valid only within one micro-batch. To cancel a schedule later, use this method.

        Args:
            callback: The function that was passed to ``schedule``.

        Returns:
            A handle for each schedule that is not cancelled.
        """

    def issue(self, call: Callable[..., Any], on_done: Callable[..., object], *args: Any) -> None:
        """Call a function outside the task, and handle its result when the current record retires.

        The call may take any amount of time: the task and its micro-batches continue. The offset of the current record is not committed
        before ``on_done`` has returned. Only processors added with ``calls=ms.Calls(...)`` may issue calls. These options define the order
        of the results, the retries, and the handling of failures.

        Args:
            call: A coroutine function or a plain function, defined at module level, because it may be called again after a restart.
                It may return ``ms.retry()``, ``ms.delay(...)``, ``ms.dead_letter(...)`` or ``ms.skip()``.
            on_done: A method of the processor, called with the record and the result.
            args: Arguments of the call. They are copied (``copy.deepcopy``), so later changes of an object reach neither the call nor a
                retry. They are pickled with the call, and must be picklable.

        Raises:
            ProcessingError: If a later micro-batch could not find the function or the method.

        Source: KIP-311, "Issue", "Execute", "Store & commit".
        """

    def acknowledge(self, metadata: RecordMetadata) -> None:
        """Acknowledge that a record is finished, in a processor added with ``acknowledges=True``.

        Until the record is acknowledged, each new processor (on Spark, one per micro-batch) receives it again. Therefore keep the work at
        module level, let ``process`` check whether the work for the record is running or done, and acknowledge in ``process`` or in a
        punctuator. Several records derived from one input record have the same metadata; the input record is finished when one processor
        has acknowledged all of them.

        Args:
            metadata: The ``record_metadata`` with which the record was processed.

        Raises:
            ProcessingError: If the processor does not have that record, was added without ``acknowledges=True``, or is not processing
                anything.

        Source: KIP-311, "Lightweight approach".
        """

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter, which the application's metrics show as ``counted: <name>``, summed over all tasks.

        Args:
            name: Name of the counter.
            by: Amount to add.

        Source: ``StreamsMetrics.addRateTotalSensor``, for totals only.
        """

    def commit(self) -> None:
        """Request that the next micro-batch start as soon as the current one has ended. Every micro-batch ends with a commit.

        The records of the current micro-batch are processed first. Then stores, results and offsets are committed together, and the next
        micro-batch starts without waiting for ``trigger_interval_ms``. A request has no effect within ``ms.spark.transform``, which follows
        the trigger of your query; in the test driver, which never waits; and for a global store, which is not committed.

        Source: ``ProcessorContext.commit``.
        """

    @overload
    def state_store(self, store: str) -> Any: ...
    @overload
    def state_store(self, store: StoreOf[S]) -> S: ...
    def state_store(self, store: str | StoreSpec) -> Any:
        """Return a store that is connected to this processor, or any global store, which is read-only.

        For an example, see :class:`Processor`.

        Args:
            store: Name of the store, or its specification, from which type checkers know the types of the store.

        Returns:
            The store; its specification determines its kind.

        Raises:
            StoreError: If no global store has this name, and no store of this name is connected.

        Source: ``ProcessorContext.getStateStore``.
        """


class Processor(Generic[K, V, K2, V2]):
    """Base class of processors: one new object per task and micro-batch.

    A class may provide the stores that it uses, in a class attribute ``stores``. They are added to the topology and connected to the
    processor. Two processors that provide the same store share it.

    On Spark, a task may run in another Python process in each micro-batch. ``init`` is therefore called at the beginning of each
    micro-batch and ``close`` at its end. Keep data that must survive a micro-batch in a store, not in an attribute.

    Source: KIP-28, "API Design"; ``org.apache.kafka.streams.processor.api.Processor``.

    Example:
        >>> import millstream as ms
        >>> class Count(ms.Processor):
        ...     def init(self, context):
        ...         super().init(context)
        ...         self.counts = context.state_store("counts")
        ...     def process(self, record):
        ...         count = (self.counts.get(record.key) or 0) + 1
        ...         self.counts.put(record.key, count)
        ...         self.context.forward(record.with_value(count))
    """

    context: ProcessorContext[K2, V2]

    def init(self, context: ProcessorContext[K2, V2]) -> None:
        """Initialise the processor; called once before the first record.

        Args:
            context: The context, which is also ``self.context``.
        """
        self.context = context

    def process(self, record: Record[K, V]) -> None:
        """Process one record. For an example, see :class:`Processor`.

        Args:
            record: The record.

        Raises:
            NotImplementedError: If the class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process(self, record)")

    def close(self) -> None:
        """Release the resources acquired in ``init`` (``close``)."""


class ValueTransformer(Generic[K, V, V2]):
    """Base class of transformers for ``KTable.transform_values``: one new object per task and micro-batch, like ``Processor``.

    A transformer may use stores and schedule punctuators, but cannot forward records: the returned value is the only result for a row.

    Source: ``org.apache.kafka.streams.kstream.ValueTransformerWithKey``.
    """

    context: ProcessorContext[Any, Any]

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        """Initialise the transformer; called once before the first row.

        Args:
            context: The context, which is also ``self.context``.
        """
        self.context = context

    def transform(self, key: K, value: V | None) -> V2 | None:
        """Return the new value of a row. For an example, see ``KTable.transform_values``.

        Args:
            key: The row's key.
            value: Its value; None if the row was deleted.

        Returns:
            The new value; None deletes the new row.

        Raises:
            NotImplementedError: If the class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define transform(self, key, value)")

    def close(self) -> None:
        """Release the resources acquired in ``init`` (``close``)."""


@dataclass(frozen=True)
class ProcessValues(Process):
    """Runs a processor that does not change keys (``FixedKeyProcessor``). Stream to stream.

    Attributes:
        key: Serde of the keys; None if it is not known.
    """

    key: Serde[Any] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class KeepStore(Process):
    """Runs the only processor that writes to a store; others only read it (``addReadOnlyStateStore``). Stream to stream."""

    divisible: ClassVar[bool] = False


@dataclass(frozen=True)
class TransformRows(Process):
    """Runs a value transformer on the changes of a table (``KTableTransformValues``). Table to table."""

    table: ClassVar[bool] = True
    divisible: ClassVar[bool] = False
