"""MockProcessorContext: runs a processor without a topology. It records the processor's requests and executes none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, overload

from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.record import Record, RecordMetadata
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.topology.processor import PunctuationType, Punctuator
from millstream.core.topology.stores import StoreOf, StoreSpec, name_of

S = TypeVar("S")


class Forwarded(NamedTuple):
    """A record that a processor forwarded.

    Attributes:
        child: The child to which it was forwarded; None for all children.
    """

    record: Record[Any, Any]
    child: str | None


@dataclass(eq=False, repr=False)
class CapturedPunctuator:
    """A function that a processor scheduled; call ``callback`` to punctuate.

    Attributes:
        interval_ms: The interval between calls, ms.
        kind: Stream time or wall-clock time.
        start_time: The time of the first call, ms since the epoch; None if the interval determines it.
        callback: The function, whose argument is the time, ms since the epoch.
        cancelled: Whether the processor has cancelled it.
    """

    interval_ms: int
    kind: PunctuationType
    start_time: int | None
    callback: Punctuator
    cancelled: bool = field(default=False, init=False)

    def cancel(self) -> None:
        """Cancel the schedule."""
        self.cancelled = True


class MockProcessorContext:
    """A context for a processor without a topology. It captures the processor's forwarded records, schedules and requests.

    Nothing else happens: time does not advance, and no serde checks a record. To run a processor in full, use ``TopologyTestDriver``.

    Args:
        stores: The stores connected to the processor, kept in memory.
        application_id: The application's id.
        task_id: The task.
        app_config: The value of the processor's ``context.app_config``.

    Attributes:
        record_metadata: Topic, partition and offset of the current record; set by the test.
        stream_time_ms: Stream time, ms since the epoch; set by the test.
        wall_clock_ms: The wall clock, ms since the epoch; set by the test.
        forwarded: The forwarded records, in order.
        punctuators: The scheduled functions.
        commit_requested: Whether a commit was requested.
        counted: The counters, by name.
        acknowledged: The metadata of acknowledged records.
        issued: The issued calls: function, callback for its result, and arguments.

    Source: ``org.apache.kafka.streams.processor.api.MockProcessorContext``.

    Example:
        >>> import millstream as ms
        >>> class Doubling(ms.Processor[str, int, str, int]):
        ...     def process(self, record):
        ...         self.context.forward(record.with_value(2 * record.value))
        ...         self.context.commit()
        >>> context, doubling = ms.testing.MockProcessorContext(), Doubling()
        >>> doubling.init(context)
        >>> doubling.process(ms.Record("k", 21, 0))
        >>> [forwarded.record.value for forwarded in context.forwarded], context.commit_requested
        ([42], True)
    """

    def __init__(
        self,
        *,
        stores: Iterable[StoreSpec] = (),
        application_id: str = "test",
        task_id: TaskId = TaskId(0, 0),  # noqa: B008 - a tuple
        app_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.application_id = application_id
        self.task_id = task_id
        self.app_config: Mapping[str, Any] = app_config or {}
        self.record_metadata: RecordMetadata | None = None
        self.stream_time_ms = -1
        self.wall_clock_ms = 0
        self.forwarded: list[Forwarded] = []
        self.punctuators: list[CapturedPunctuator] = []
        self.commit_requested = False
        self.counted: Counter[str] = Counter()
        self.acknowledged: list[RecordMetadata] = []
        self.issued: list[tuple[Callable[..., Any], Callable[..., object], tuple[Any, ...]]] = []
        self._stores = {spec.name: open_store(spec, MemoryStores()) for spec in stores}

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        """Record a forwarded record; see ``ProcessorContext.forward``. For an example, see :class:`MockProcessorContext`.

        Args:
            record: The record.
            child: Name of the child; None for all children.

        Source: ``MockProcessorContext.forward``.
        """
        self.forwarded.append(Forwarded(record, child))

    def schedule(
        self,
        interval: Duration,
        kind: PunctuationType,
        callback: Punctuator,
        *,
        start_time: int | None = None,
    ) -> CapturedPunctuator:
        """Record a scheduled function; see ``ProcessorContext.schedule``.

        Args:
            interval: Interval, at least 1 ms; ``timedelta`` or ms.
            kind: ``ms.stream_time`` or ``ms.wall_clock``.
            callback: The function; a test calls it through ``context.punctuators``.
            start_time: First due time, ms since the epoch.

        Returns:
            The captured schedule.

        Raises:
            ValueError: If the interval is shorter than 1 ms.

        Source: ``MockProcessorContext.scheduledPunctuators``.

        Example:
            >>> import millstream as ms
            >>> context, ticks = ms.testing.MockProcessorContext(), []
            >>> _ = context.schedule(1000, ms.stream_time, ticks.append)
            >>> context.punctuators[0].callback(2000)
            >>> ticks
            [2000]
        """
        if millis(interval) < 1:
            raise ValueError(f"a punctuation interval must be at least 1 ms, not {millis(interval)}")
        punctuator = CapturedPunctuator(millis(interval), kind, start_time, callback)
        self.punctuators.append(punctuator)
        return punctuator

    def scheduled(self, callback: Punctuator) -> tuple[CapturedPunctuator, ...]:
        """Return the schedules of a function that are not cancelled.

        Args:
            callback: The function.
        """
        return tuple(p for p in self.punctuators if p.callback == callback and not p.cancelled)

    def issue(self, call: Callable[..., Any], on_done: Callable[..., object], *args: Any) -> None:
        """Record a call without making it, in ``issued``.

        Args:
            call: The function to call.
            on_done: The method that would receive the result.
            args: Arguments of the call.
        """
        self.issued.append((call, on_done, args))

    def acknowledge(self, metadata: RecordMetadata) -> None:
        """Record that a record is finished, in ``acknowledged``.

        Args:
            metadata: The ``record_metadata`` with which the record was processed.
        """
        self.acknowledged.append(metadata)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter, in ``counted``.

        Args:
            name: Name of the counter.
            by: Amount to add.
        """
        self.counted[name] += by

    def commit(self) -> None:
        """Record a commit request. Reset ``commit_requested`` to detect the next one.

        Source: ``MockProcessorContext.commit``.
        """
        self.commit_requested = True

    @overload
    def state_store(self, store: str) -> Any: ...
    @overload
    def state_store(self, store: StoreOf[S]) -> S: ...
    def state_store(self, store: str | StoreSpec) -> Any:
        """Return a store.

        Args:
            store: Name or specification of a store of the argument ``stores``.

        Raises:
            StoreError: If the context has no such store.

        Source: ``MockProcessorContext.getStateStore``.
        """
        name = name_of(store)
        if name not in self._stores:
            known = ", ".join(self._stores) or "none"
            raise StoreError(
                f"the context has no store {name!r} (it has: {known}); give MockProcessorContext(stores=[...])"
            )
        return self._stores[name]
