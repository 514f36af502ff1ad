"""The context of a processor node: implements ``ProcessorContext`` with the task's runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.core.engine.punctuate import Schedule
from millstream.core.engine.runtime import Runtime
from millstream.core.model.arguments import arguments_problem, kind_problem
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import ProcessingError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.record import Headers, Record, RecordMetadata
from millstream.core.state.readonly import read_only
from millstream.core.topology.processor import (
    Cancellable,
    Processor,
    PunctuationType,
    Punctuator,
    ValueTransformer,
)
from millstream.core.topology.stores import StoreSpec, name_of

StreamCall = Callable[[Any, Any, int, Headers], None]


class NodeContext:
    """Implements ``ProcessorContext`` for one node of one task. Owned by the task.

    Attributes:
        only_read: The connected stores that the processor may only read, because another node maintains them.
        local: In the task of a key range, wraps a store to refuse keys of other ranges; else None.
        processor: The object that the user's supplier returned.
    """

    def __init__(
        self,
        node: str,
        stores: tuple[str, ...],
        runtime: Runtime,
        forward: StreamCall,
        children: Mapping[str, StreamCall],
    ) -> None:
        self._node = node
        self._stores = stores
        self.only_read: frozenset[str] = frozenset()
        self.local: Callable[[str, Any], Any] | None = None
        self._runtime = runtime
        self._forward = forward
        self._children = children
        self._in_init = False
        self._made_in_init = 0
        self.processor: Any = None

    @property
    def application_id(self) -> str:
        return self._runtime.application_id

    @property
    def app_config(self) -> Mapping[str, Any]:
        return self._runtime.app_config

    @property
    def task_id(self) -> TaskId:
        return self._runtime.task_id

    @property
    def record_metadata(self) -> RecordMetadata | None:
        return self._runtime.metadata()

    @property
    def stream_time_ms(self) -> int:
        return self._runtime.stream_time

    @property
    def wall_clock_ms(self) -> int:
        return self._runtime.now_ms

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        if not self._runtime.active:
            raise ProcessingError(
                f"processor {self._node!r} forwards while no record is being processed; forward in process() or in a "
                "punctuator, not in init(), close() or another thread"
            )
        if child is None:
            self._forward(record.key, record.value, record.timestamp, record.headers)
            return
        call = self._children.get(child)
        if call is None:
            known = ", ".join(self._children) or "none"
            raise ProcessingError(f"processor {self._node!r} has no child {child!r}; its children: {known}")
        call(record.key, record.value, record.timestamp, record.headers)

    def schedule(
        self,
        interval: Duration,
        kind: PunctuationType,
        callback: Punctuator,
        *,
        start_time: int | None = None,
    ) -> Cancellable:
        self._check_schedule(kind, callback)
        interval_ms = millis(interval)
        if interval_ms < 1:
            raise ValueError(f"a punctuation interval must be at least 1 ms, not {interval_ms}")
        if start_time is not None and start_time < 0:
            raise ValueError(f"a punctuation's start time must not be negative: {start_time}")
        chosen = start_time is not None
        if start_time is None:
            start_time = 0 if kind is PunctuationType.STREAM_TIME else self._runtime.now_ms + interval_ms
        ordinal, method = self._identity(callback)
        schedule = Schedule(
            self._node, ordinal, method, kind, interval_ms, start_time, callback, chosen=chosen
        )
        self._runtime.punctuations.add(schedule)
        self._runtime.refresh_due()
        return schedule

    def _check_schedule(self, kind: object, callback: object) -> None:
        """Refuse a schedule that would never call its function.

        Raises:
            ProcessingError: If the kind is no clock, or the function cannot be called with a time.
        """
        problem = None
        if not isinstance(kind, PunctuationType):
            problem = f"the kind of a schedule is ms.stream_time or ms.wall_clock, not {kind!r}"
        elif not callable(callback):
            problem = f"a schedule calls a function, not {callback!r}"
        problem = problem or kind_problem(callback) or arguments_problem(callback, ("now",))
        if problem is not None:
            raise ProcessingError(f"processor {self._node!r}: {problem}")

    def scheduled(self, callback: Punctuator) -> tuple[Cancellable, ...]:
        schedules = self._runtime.punctuations.schedules
        return tuple(
            s for s in schedules if s.node == self._node and s.callback == callback and not s.cancelled
        )

    def count(self, name: str, by: int = 1) -> None:
        self._runtime.counted[name] += by

    def commit(self) -> None:
        self._runtime.commit_requested = True

    def issue(self, call: Callable[..., Any], on_done: Callable[..., object], *args: Any) -> None:
        raise ProcessingError(
            f"processor {self._node!r} issues a call, but was added without calls=ms.Calls(...); add this argument"
        )

    def acknowledge(self, metadata: RecordMetadata) -> None:
        raise ProcessingError(
            f"processor {self._node!r} acknowledges a record, but was added without acknowledges=True, so records are finished when process() returns; "
            "add this argument"
        )

    def state_store(self, store: str | StoreSpec) -> Any:
        name = name_of(store)
        if name not in self._stores:
            if name in self._runtime.global_stores:
                return self._runtime.global_stores[name]
            known = ", ".join(self._stores) or "none"
            raise StoreError(
                f"processor {self._node!r} is not connected to a store {name!r} (connected: {known}); name it in "
                f"process(..., stores=[{name!r}]), add_processor(..., stores=[{name!r}]) or connect(...)"
            )
        opened = self._runtime.stores[name]
        if name in self.only_read:
            return read_only(opened)
        return opened if self.local is None else self.local(name, opened)

    def init(self) -> None:
        """Call the processor's ``init``. Schedules that it creates are numbered.

        The processor receives its context before, so that it also has one if its ``init`` does not call that of the base class.
        """
        if isinstance(self.processor, (Processor, ValueTransformer)):
            self.processor.context = self
        self._in_init = True
        try:
            self.processor.init(self)
        finally:
            self._in_init = False

    def _identity(self, callback: Punctuator) -> tuple[int | None, str | None]:
        """Return how later micro-batches find the callback: by its number in ``init``, or by its method name."""
        if self._in_init:
            self._made_in_init += 1
            return self._made_in_init - 1, None
        name = getattr(callback, "__name__", "")
        if getattr(callback, "__self__", None) is self.processor and hasattr(self.processor, name):
            return None, name
        raise ProcessingError(
            f"processor {self._node!r} schedules {callback!r} outside init(). The schedule must be found again in later "
            "micro-batches, which may run in another process: schedule it in init(), or pass a method of the processor"
        )


class GlobalNodeContext(NodeContext):
    """The context of a processor that maintains a global store (Kafka Streams: ``GlobalProcessorContextImpl``)."""

    @property
    def stream_time_ms(self) -> int:
        raise ProcessingError(
            f"processor {self._node!r} fills a global store and has no stream time, because the copies of different hosts may have different "
            "positions. Use the timestamp of the record"
        )

    def schedule(
        self,
        interval: Duration,
        kind: PunctuationType,
        callback: Punctuator,
        *,
        start_time: int | None = None,
    ) -> Cancellable:
        raise ProcessingError(
            f"processor {self._node!r} fills a global store and cannot schedule punctuation, because the content of the "
            "store depends only on the records of its topic"
        )
