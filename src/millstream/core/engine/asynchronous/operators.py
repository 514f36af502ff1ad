"""Compilers of asynchronous operators. A record is in flight during its call, and is forwarded when it retires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.asynchronous.effects import Effects, Started
from millstream.core.engine.asynchronous.acknowledgements import Acknowledgements
from millstream.core.engine.asynchronous.in_flight import InFlightRecords
from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord, own
from millstream.core.engine.asynchronous.requests import MissingFunction, Request
from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.context import NodeContext
from millstream.core.engine.failures import where
from millstream.core.engine.operators.processors import create_processor_context
from millstream.core.model.arguments import is_coroutine
from millstream.core.model.calls import Answer
from millstream.core.model.errors import IncompatibleTopologyError, ProcessingError
from millstream.core.model.record import Headers, Record, RecordMetadata
from millstream.core.topology.async_nodes import (
    AcknowledgingProcess,
    ForeachAsync,
    IssuingProcess,
    MapValuesAsync,
    ProcessAsync,
)


@compile_node.register
def _compile_value_call(node: MapValuesAsync | ForeachAsync, compiled: Compiled) -> Call:
    function, child = node.function, compiled.children(node)
    with_key = isinstance(node, ForeachAsync) or node.with_key

    def request_of(record: InFlightRecord) -> Any:
        return function, (record.key, record.value) if with_key else (record.value,)

    def apply(record: InFlightRecord, value: Any) -> None:
        child(record.key, value, record.timestamp, record.headers)  # a ForeachAsync has no children

    return InFlightRecords(node, compiled.runtime, request_of, apply).take


@compile_node.register
def _compile_process_async(node: ProcessAsync, compiled: Compiled) -> Call:
    runtime, name = compiled.runtime, node.name
    function, child = node.function, compiled.children(node)
    children = compiled.named_children(node)
    stores = {store: runtime.stores[store] for store in node.stores}

    def request_of(record: InFlightRecord) -> Any:
        state = {store: opened.get(record.key) for store, opened in stores.items() if record.key is not None}
        started = Started(
            name,
            record.key,
            record.value,
            record.timestamp,
            record.headers,
            record.attempt,
            state,
            record.origin,
        )
        return function, (started,)

    def apply(record: InFlightRecord, value: Effects) -> None:
        check(value)
        for kind, target, args in value:
            if target is None:
                child(*args)
            elif kind == "put":
                stores[target].put(*args)
            else:
                children[target](*args)

    def check(effects: Effects) -> None:
        """Refuse impossible effects before any is applied."""
        for kind, target, args in effects:
            if kind == "put":
                stores[target or ""].check(*args)
            elif target is not None and target not in children:
                known = ", ".join(children) or "none"
                raise ProcessingError(f"{name!r} has no child {target!r}; its children: {known}")

    limit: dict[str, Any] = {"per_key": 1} if stores else {}  # a call reads the writes of the previous call
    return InFlightRecords(node, runtime, request_of, apply, **limit).take


@compile_node.register
def _compile_issuing_process(node: IssuingProcess, compiled: Compiled) -> Call:
    context = create_processor_context(node, compiled, IssuingContext)
    context.in_flight = InFlightRecords(
        node, compiled.runtime, context.request_of, context.apply, check=context.check_names
    )
    runtime, name, process = compiled.runtime, node.name, context.processor.process

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        context.current = key, value, timestamp, headers
        try:
            process(Record(key, value, timestamp, headers))
        except Exception as error:
            runtime.on_error("process", name, error)
        finally:
            context.current = None

    return run


class IssuingContext(NodeContext):
    in_flight: InFlightRecords
    current: tuple[Any, Any, int, Headers] | None = None

    def issue(self, call: Callable[..., Any], on_done: Callable[..., object], *args: Any) -> None:
        if not self._runtime.active:
            raise ProcessingError(
                f"processor {self._node!r} issues a call while no record is being processed; issue calls in process(), "
                "in a punctuator or in the callback of another call"
            )
        then = getattr(on_done, "__name__", "")
        if getattr(on_done, "__self__", None) is not self.processor or not hasattr(self.processor, then):
            raise ProcessingError(
                f"processor {self._node!r} issues a call with the callback {on_done!r}. The result may arrive in a later "
                "micro-batch, in another process, so on_done must be a method of the processor"
            )
        if is_coroutine(on_done):
            raise ProcessingError(
                f"processor {self._node!r}: {then}() is the callback of a call and a coroutine function, which would not be awaited; "
                "make it a plain method, which may issue the next call"
            )
        self._check(call)
        key, value, timestamp, headers = self.current or (None, None, max(self._runtime.stream_time, 0), ())
        self.in_flight.take(key, value, timestamp, headers, Request(call, tuple(map(own, args)), then))

    def request_of(self, record: InFlightRecord) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        request = record.request
        assert request is not None
        assert not isinstance(request.function, MissingFunction), request
        return request.function, request.args

    def check_names(self, record: InFlightRecord) -> None:
        """Check that the program still has the function and the callback of a record, because both are stored by name.

        Raises:
            IncompatibleTopologyError: If one of them is gone. No error policy applies, because it would drop the records of the old name.
        """
        request = record.request
        assert request is not None
        function = request.function
        if isinstance(function, MissingFunction):
            gone = f"the function {function.name!r} of module {function.module!r}, which it issued"
        elif not hasattr(self.processor, request.then):
            gone = f"the method {request.then!r} of the processor, which receives the result"
        else:
            return
        raise IncompatibleTopologyError(
            f"processor {self._node!r} has a call in flight for the record {where(record.raw)}, but the program no longer has {gone}: "
            "restore the name, or drain before renaming (run the old program and stop it with stop(drain_timeout_s=...))"
        )

    def apply(self, record: InFlightRecord, value: Any) -> None:
        """Pass a result to the processor when its record retires."""
        assert record.request is not None
        self.current = record.key, record.value, record.timestamp, record.headers
        try:
            given = getattr(self.processor, record.request.then)(
                Record(record.key, record.value, record.timestamp, record.headers), value
            )
        finally:
            self.current = None
        if isinstance(given, Answer):
            raise ProcessingError(
                f"processor {self._node!r}: {record.request.then}() returned {given!r}. Only the function of a call may return that; a "
                "callback forwards records, writes to stores, or issues another call"
            )

    def _check(self, call: Any) -> None:
        name = getattr(call, "__qualname__", "")
        if not callable(call) or "<" in name or getattr(call, "__self__", None) is self.processor:
            raise ProcessingError(
                f"processor {self._node!r} issues {call!r}. The call may be repeated after a restart, in another process: issue "
                "a function that is defined at the top level of a module, and pass its arguments to issue()"
            )


@compile_node.register
def _compile_acknowledging_process(node: AcknowledgingProcess, compiled: Compiled) -> Call:
    context = create_processor_context(node, compiled, AcknowledgingContext)
    runtime, name, process = compiled.runtime, node.name, context.processor.process

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            process(Record(key, value, timestamp, headers))
        except Exception as error:
            runtime.on_error("process", name, error)
            context.taken.give_up()

    context.taken = Acknowledgements(name, node.carried, node.most, runtime, run)
    return context.taken.take


class AcknowledgingContext(NodeContext):
    taken: Acknowledgements

    def acknowledge(self, metadata: RecordMetadata) -> None:
        if not self._runtime.active:
            raise ProcessingError(
                f"processor {self._node!r} acknowledges a record while no record is being processed. If the work runs elsewhere, "
                "for example in threads, put its results where process() or a punctuator finds them, and acknowledge there"
            )
        self.taken.acknowledge(metadata)
