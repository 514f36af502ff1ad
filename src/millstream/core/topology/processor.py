"""Processors: what a user writes, and the context they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from millstream.core.model.durations import Duration
from millstream.core.model.errors import TopologyError
from millstream.core.model.ids import TaskId
from millstream.core.model.punctuation import Cancellable, PunctuationType, Punctuator
from millstream.core.model.record import Record, RecordMetadata
from millstream.core.topology.nodes import Process
from millstream.core.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


Wrap: TypeAlias = Callable[[str, Callable[[], Any]], Callable[[], Any]]
"""The name of a node and what makes its processors, to what makes them in its place (``ProcessorWrapper``, KIP-1112)."""


class ProcessorContext(Protocol[K2, V2]):
    """What a processor can see and ask for.

    Source: KIP-28, "API Design"; ``org.apache.kafka.streams.processor.api.ProcessorContext``.
    """

    @property
    def application_id(self) -> str:
        """The application's id."""

    @property
    def app_config(self) -> Mapping[str, Any]:
        """What the application was given for its processors: its setting ``app_config`` (``appConfigs``)."""

    @property
    def task_id(self) -> TaskId:
        """The task this processor belongs to; ``str(task_id)`` is like ``0_3``."""

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the record that is being processed; None in a punctuator."""

    @property
    def stream_time_ms(self) -> int:
        """The largest timestamp the task has taken so far, ms since the epoch; -1 before the first record.

        Raises:
            ProcessingError: In a processor that maintains a global store, whose copies are not equally far.
        """

    @property
    def wall_clock_ms(self) -> int:
        """The wall clock, ms since the epoch, as it was when the micro-batch was planned."""

    def forward(self, record: Record[K2, V2], child: str | None = None) -> None:
        """Hand a record to all children, or to the child of that name, and return when they are done with it.

        Raises:
            ProcessingError: If there is no child of that name, or nothing is being processed.
        """

    def schedule(
        self,
        interval: Duration,
        kind: PunctuationType,
        callback: Punctuator,
        *,
        start_time: int | None = None,
    ) -> Cancellable:
        """Call a function again and again as time advances.

        Args:
            interval: At least 1 ms.
            kind: ``ms.stream_time`` or ``ms.wall_clock``.
            callback: Called with the current time of that kind in ms. If this is not called in ``init``, it must be a
                method of the processor, so that it can be found again in later micro-batches.
            start_time: First due time in ms since the epoch; None is 0 for stream time, now + interval for the wall clock.

        Returns:
            What cancels it.

        Raises:
            ValueError: If the interval is below 1 ms.
            ProcessingError: If a later micro-batch could not find the callback again.
        """

    def scheduled(self, callback: Punctuator) -> tuple[Cancellable, ...]:
        """Return this processor's schedules that call a function, those of earlier micro-batches included.

        What ``schedule`` returned does not outlive a micro-batch; this finds it again, to cancel it.
        """

    def issue(self, call: Callable[..., Any], on_done: Callable[..., object], *args: Any) -> None:
        """Call a function outside the task, and get its result when the current record retires.

        The call may take any time: records go on being processed, and so do micro-batches. The offset of the current record is
        not committed before ``on_done`` has returned. Only processors added with ``calls=ms.Calls(...)`` may issue calls; that
        says in which order they end, how often they are tried and what happens when they fail.

        Args:
            call: A coroutine function or a plain one, defined at the top of a module: it may be called again after a restart.
                It may return ``ms.retry()``, ``ms.delay(...)``, ``ms.dead_letter(...)`` and ``ms.skip()``.
            on_done: A method of the processor, called with the record and the result.
            args: What the function is called with.

        Raises:
            ProcessingError: If a later micro-batch could not find the function or the method again.

        Source: KIP-311, "Issue", "Execute", "Store & commit".
        """

    def acknowledge(self, metadata: RecordMetadata) -> None:
        """Say that a record is finished, in a processor added with ``acknowledges=True``.

        Until then each new processor, which every micro-batch on Spark has, is given the record again. So keep the work at the level
        of a module, let ``process`` look whether work for the record runs or has ended already, and acknowledge in ``process`` or
        in a punctuator. Records that one record became on its way have the same metadata: they are finished when as many
        acknowledgements have come to one processor.

        Args:
            metadata: The ``record_metadata`` it was processed with.

        Raises:
            ProcessingError: If the processor does not have that record, or was not added so, or if nothing is being processed.

        Source: KIP-311, "Lightweight approach".
        """

    def count(self, name: str, by: int = 1) -> None:
        """Add to a number that the application's metrics show as ``counted: <name>``, over all tasks.

        Args:
            name: What is counted.
            by: How many.

        Source: ``StreamsMetrics.addRateTotalSensor``, as far as totals go.
        """

    def commit(self) -> None:
        """Ask for the next micro-batch as soon as the one under way has ended, as every one does, with a commit.

        The records of the micro-batch under way are processed first. Then stores, results and offsets are committed together, and
        the next micro-batch begins without waiting for ``trigger_interval_ms``. Within ``ms.spark.transform`` the trigger is your
        query's own, in the test driver nothing waits, and a global store is not committed: there it does nothing.

        Source: ``ProcessorContext.commit``.
        """

    def state_store(self, name: str) -> Any:
        """Return a store that is connected to this processor, or any global store, which can only be read.

        Raises:
            StoreError: If there is no such global store, and no such store is connected.
        """


class Processor(Generic[K, V, K2, V2]):
    """Base class of processors: one new object per task and micro-batch.

    A class may bring along the stores that it uses, in a class attribute ``stores``: they are added to the topology and connected
    to the processor. Two processors that bring the same store share it.

    On Spark a task may run in another Python process in each micro-batch. So ``init`` is called at the beginning of each
    and ``close`` at its end, and what has to outlive a micro-batch belongs in a store, not in an attribute.

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
        """Get ready; called once before the first record. Keeps the context as ``self.context``."""
        self.context = context

    def process(self, record: Record[K, V]) -> None:
        """Process one record.

        Raises:
            NotImplementedError: If the class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process(self, record)")

    def close(self) -> None:
        """Let go of what ``init`` acquired."""


def provided_stores(name: str, supplier: Callable[[], Any]) -> tuple[StoreSpec, ...]:
    """Return the stores that a supplier brings along: those in its attribute ``stores``, or that its function of that name gives.

    Args:
        name: The processor's name.
        supplier: A class or a function.

    Raises:
        TopologyError: If these are no stores.

    Source: ``org.apache.kafka.streams.processor.ConnectedStoreProvider`` (KIP-401).
    """
    provided = getattr(supplier, "stores", ())
    try:
        stores = tuple(provided() if callable(provided) else provided)
    except TypeError:
        stores = (provided,)
    for store in stores:
        if not isinstance(store, StoreSpec):
            raise TopologyError(
                f"processor {name!r}: the attribute 'stores' of a supplier, or what a static method of that name gives, are the "
                f"stores that it brings along, as ms.stores.key_value(...) makes them, not {store!r}; give names of stores that "
                "are added elsewhere as stores=[...] beside the supplier, and call other things by another name"
            )
    return stores


def checked_supplier(name: str, supplier: Callable[[], Any]) -> Callable[[], Any]:
    """Return a supplier if it can make a processor, or a value transformer, for each task.

    A function is called twice to see that it makes a new one each time; a class always does.

    Raises:
        TopologyError: If it is one itself, or gives the same one again.

    Source: ``ApiUtils.checkSupplier``.
    """
    if _is_processor(supplier) and not isinstance(supplier, type):
        raise TopologyError(
            f"processor {name!r}: give the class or a function that makes a new processor, not {supplier!r}; "
            "every task needs one of its own"
        )
    if not isinstance(supplier, type) and _is_processor(made := supplier()) and made is supplier():
        raise TopologyError(
            f"processor {name!r}: the function gives the same processor each time it is called; make a new one in it, because every "
            "task needs one of its own"
        )
    return supplier


def _is_processor(made: object) -> bool:
    return hasattr(made, "process") or hasattr(made, "transform")


class ValueTransformer(Generic[K, V, V2]):
    """Base class of what ``KTable.transform_values`` runs: one new object per task and micro-batch, as a ``Processor``.

    It may use stores and schedule punctuators, but forwards nothing: a row has one value, the one that is returned.

    Source: ``org.apache.kafka.streams.kstream.ValueTransformerWithKey``.
    """

    context: ProcessorContext[Any, Any]

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        """Get ready; called once before the first row. Keeps the context as ``self.context``."""
        self.context = context

    def transform(self, key: K, value: V | None) -> V2 | None:
        """Return the new value of a row.

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
        """Let go of what ``init`` acquired."""


@dataclass(frozen=True)
class ProcessValues(Process):
    """Runs a processor that leaves keys as they are (``FixedKeyProcessor``). Stream to stream."""


@dataclass(frozen=True)
class KeepStore(Process):
    """Runs the processor that alone writes to a store, which others only read (``addReadOnlyStateStore``). Stream to stream."""


@dataclass(frozen=True)
class TransformRows(Process):
    """Runs a value transformer on the changes of a table (``KTableTransformValues``). Table to table."""

    table: ClassVar[bool] = True
