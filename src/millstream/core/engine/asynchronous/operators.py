"""Asynchronous operators: each record is kept in a ledger, called elsewhere, and goes on when it retires."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from millstream.core.asynchronous.acting import Acting
from millstream.core.asynchronous.effects import Effects, Performing, Started
from millstream.core.engine.asynchronous.acknowledgements import Acknowledgements
from millstream.core.engine.asynchronous.delay_queue import DelayQueue
from millstream.core.engine.asynchronous.overflow import Overflow
from millstream.core.engine.asynchronous.unfinished import Request, Unfinished
from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.context import NodeContext
from millstream.core.engine.ledger import Ledger
from millstream.core.engine.operators.processors import made
from millstream.core.engine.runtime import Runtime
from millstream.core.model.answers import Answer
from millstream.core.model.errors import ProcessingError
from millstream.core.model.record import Headers, Record, RecordMetadata
from millstream.core.topology.asynchronous import (
    AcknowledgingProcess,
    Asynchronous,
    ForeachAsync,
    IssuingProcess,
    MapValuesAsync,
    ProcessAsync,
)


@compile_node.register
def _compile_map_values_async(node: MapValuesAsync, compiled: Compiled) -> Call:
    function, child = node.function, compiled.children(node)

    def asks(one: Unfinished) -> Any:
        return function, (one.key, one.value) if node.with_key else (one.value,)

    def applies(one: Unfinished, value: Any) -> None:
        child(one.key, value, one.timestamp, one.headers)

    return _ledger(node, compiled.runtime, asks, applies).take


@compile_node.register
def _compile_foreach_async(node: ForeachAsync, compiled: Compiled) -> Call:
    function = node.function if node.calls.batch is None else Acting(node.function)

    def asks(one: Unfinished) -> Any:
        return function, (one.key, one.value)

    def applies(one: Unfinished, value: Any) -> None:
        pass

    return _ledger(node, compiled.runtime, asks, applies).take


@compile_node.register
def _compile_process_async(node: ProcessAsync, compiled: Compiled) -> Call:
    runtime, name = compiled.runtime, node.name
    function, child = Performing(node.function), compiled.children(node)
    children = compiled.named_children(node)
    stores = {store: runtime.stores[store] for store in node.stores}

    def asks(one: Unfinished) -> Any:
        state = {store: opened.get(one.key) for store, opened in stores.items() if one.key is not None}
        started = Started(
            name, one.key, one.value, one.timestamp, one.headers, one.attempt, state, one.origin
        )
        return function, (started,)

    def applies(one: Unfinished, value: Effects) -> None:
        check(value)
        for kind, where, what in value:
            if where is None:
                child(*what)
            elif kind == "put":
                stores[where].put(*what)
            else:
                children[where](*what)

    def check(effects: Effects) -> None:
        """Refuse effects of which one is impossible, before any is applied."""
        for kind, where, what in effects:
            if kind == "put":
                stores[where or ""].check(*what)
            elif where is not None and where not in children:
                known = ", ".join(children) or "none"
                raise ProcessingError(f"{name!r} has no child {where!r}; its children: {known}")

    serial = {"serial": 1} if stores else {}
    return _ledger(node, runtime, asks, applies, **serial).take


def _ledger(
    node: Asynchronous | IssuingProcess,
    runtime: Runtime,
    asks: Callable[[Unfinished], tuple[Callable[..., Any], tuple[Any, ...]]],
    applies: Callable[[Unfinished, Any], None],
    **options: int,
) -> Ledger:
    carried = node.carried
    rows, keys = runtime.stores[carried.delayed.name], runtime.stores[carried.delayed_keys.name]
    memory = runtime.memory(node.remembered_as)
    delay_queue, overflow = (
        DelayQueue(rows, keys, memory),
        Overflow(runtime.stores[carried.parked.name], memory),
    )
    return Ledger(node.name, node.calls, carried, runtime, asks, applies, delay_queue, overflow, **options)


@compile_node.register
def _compile_issuing_process(node: IssuingProcess, compiled: Compiled) -> Call:
    context = made(node, compiled, IssuingContext)
    context.ledger = _ledger(node, compiled.runtime, context.asked, context.answered)
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
    """The context of a processor that issues calls. Owned by the task."""

    ledger: Ledger
    current: tuple[Any, Any, int, Headers] | None = None

    def issue(self, call: Callable[..., Any], on_done: Callable[..., object], *args: Any) -> None:
        """Call a function outside the task; see ``ProcessorContext.issue``."""
        if not self._runtime.active:
            raise ProcessingError(
                f"processor {self._node!r} issues a call while nothing is being processed; issue in process(), in a "
                "punctuator or in the method that got the result of another call"
            )
        then = getattr(on_done, "__name__", "")
        if getattr(on_done, "__self__", None) is not self.processor or not hasattr(self.processor, then):
            raise ProcessingError(
                f"processor {self._node!r} issues a call whose result is to go to {on_done!r}. The result may come in a later "
                "micro-batch, in another process: let on_done be a method of the processor"
            )
        if iscoroutinefunction(on_done):
            raise ProcessingError(
                f"processor {self._node!r}: {then}() gets the result of a call and is a coroutine function, for which nobody would "
                "wait; let it be a plain method, which may issue the next call"
            )
        self._check(call)
        key, value, timestamp, headers = self.current or (None, None, max(self._runtime.stream_time, 0), ())
        self.ledger.take(key, value, timestamp, headers, Request(call, args, then))

    def asked(self, one: Unfinished) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what was issued for a record."""
        assert one.request is not None
        return one.request.function, one.request.args

    def answered(self, one: Unfinished, value: Any) -> None:
        """Hand a result to the processor, as the record it was issued for retires."""
        assert one.request is not None
        self.current = one.key, one.value, one.timestamp, one.headers
        try:
            given = getattr(self.processor, one.request.then)(
                Record(one.key, one.value, one.timestamp, one.headers), value
            )
        finally:
            self.current = None
        if isinstance(given, Answer):
            raise ProcessingError(
                f"processor {self._node!r}: {one.request.then}() returned {given!r}. That is what a call may give; a method that "
                "gets its result forwards, writes, or issues another call"
            )

    def _check(self, call: Any) -> None:
        name = getattr(call, "__qualname__", "")
        if not callable(call) or "<" in name or getattr(call, "__self__", None) is self.processor:
            raise ProcessingError(
                f"processor {self._node!r} issues {call!r}. The call may be made again after a restart, in another process: "
                "issue a function that is defined at the top of a module, and give its arguments to issue()"
            )


@compile_node.register
def _compile_acknowledging_process(node: AcknowledgingProcess, compiled: Compiled) -> Call:
    context = made(node, compiled, AcknowledgingContext)
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
    """The context of a processor that acknowledges records. Owned by the task."""

    taken: Acknowledgements

    def acknowledge(self, metadata: RecordMetadata) -> None:
        """Acknowledge a record; see ``ProcessorContext.acknowledge``."""
        if not self._runtime.active:
            raise ProcessingError(
                f"processor {self._node!r} acknowledges a record while nothing is being processed. Work that goes on elsewhere, in "
                "threads say, leaves its results where process() or a punctuator finds them, and these acknowledge"
            )
        self.taken.acknowledge(metadata)
