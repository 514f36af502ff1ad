"""Compilers of user-defined processors and value transformers."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, Final, TypeVar

from millstream.core.engine.compile import Call, Compiled, compile_node, discard
from millstream.core.engine.context import GlobalNodeContext, NodeContext
from millstream.core.model.arguments import arguments_problem, is_coroutine
from millstream.core.model.errors import ProcessingError, TopologyError
from millstream.core.model.record import Headers, Record
from millstream.core.model.serdes import Serde
from millstream.core.topology import nodes as n
from millstream.core.topology.checks import check_defined, supplied
from millstream.core.topology.global_nodes import GlobalProcess
from millstream.core.topology.processor import ProcessValues, TransformRows

C = TypeVar("C", bound=NodeContext)


@compile_node.register
def _compile_process(node: n.Process, compiled: Compiled) -> Call:
    return running(node, compiled, NodeContext)


@compile_node.register
def _compile_global_process(node: GlobalProcess, compiled: Compiled) -> Call:
    return running(node, compiled, GlobalNodeContext)


def create_processor_context(node: n.Process, compiled: Compiled, context_type: type[C]) -> C:
    children = compiled.named_children(node)
    context = context_type(node.name, node.stores, compiled.runtime, compiled.children(node), children)
    context.processor = _call_supplier(node, "process", "Processor")
    context.only_read, context.local = compiled.only_read(node), compiled.local(node)
    compiled.contexts.append(context)
    return context


def running(node: n.Process, compiled: Compiled, context_type: type[NodeContext]) -> Call:
    """Create a processor, and return its closure."""
    runtime, name = compiled.runtime, node.name
    process = create_processor_context(node, compiled, context_type).processor.process

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            process(Record(key, value, timestamp, headers))
        except Exception as error:
            runtime.on_error("process", name, error)

    return run


@compile_node.register
def _compile_process_values(node: ProcessValues, compiled: Compiled) -> Call:
    process = running(node, compiled, _FixedKeyContext)
    context = compiled.contexts[-1]
    assert isinstance(context, _FixedKeyContext)
    context.serde = node.key

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        context.key = key
        try:
            process(key, value, timestamp, headers)
        finally:
            context.key = _ANY

    return run


_TAKES: Final = {"process": ("record",), "transform": ("key", "value")}
"""The arguments, besides the object, of the methods that are called for each record."""
_ANY: Final = object()
"""Placeholder for the key while no record is being processed."""
_EXACT: Final = frozenset((str, bytes, int))
"""Types whose equal objects have equal bytes in every serde."""


class _FixedKeyContext(NodeContext):
    """The context of a processor that must not change keys. Owned by the task."""

    key: Any = _ANY
    serde: Serde[Any] | None = None

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        """Forward a record with the same key as the input record.

        Raises:
            ProcessingError: If the key differs.
        """
        if (
            record.key is not self.key
            and self.key is not _ANY
            and not _is_same(self.key, record.key, self.serde)
        ):
            raise ProcessingError(
                f"processor {self._node!r} received a record with the key {self.key!r} and forwards one with the key {record.key!r}, "
                "but process_values() must not change keys, because operators downstream do not repartition; use process()"
            )
        super().forward(record, child)


def _is_same(key: Any, other: Any, serde: Serde[Any] | None) -> bool:
    """Return whether two objects are the same key: have the same bytes, or, if these are not known, the same type and an equal value.

    Python's comparison alone does not tell: 1 equals True and 1.0, and arrays have no single result. A serde that needs a topic is not
    called, because it may register a schema.
    """
    kind = type(key)
    if kind is type(other) and kind in _EXACT:
        return bool(key == other)
    try:
        if serde is None or serde.contextual is not None or key is None or other is None:
            return kind is type(other) and bool(key == other)
        return serde.serialize(key) == serde.serialize(other)
    except Exception:  # then only the object itself is known to be the same key
        return False


@compile_node.register
def _compile_transform_rows(node: TransformRows, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    context = _TransformerContext(name, node.stores, runtime, discard, {})
    context.processor = _call_supplier(node, "transform", "ValueTransformer")
    context.only_read, context.local = compiled.only_read(node), compiled.local(node)
    compiled.contexts.append(context)
    transform = context.processor.transform

    def transform_rows(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            new = transform(key, new)
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, new, None, timestamp, headers)  # the store downstream knows the old value

    return transform_rows


class _TransformerContext(NodeContext):
    """The context of a value transformer, which must not forward records. Owned by the task."""

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        raise ProcessingError(
            f"value transformer {self._node!r} forwards a record, but a row has one value: return it from transform(), or use "
            "to_stream() and a processor"
        )


def _call_supplier(node: n.Process, method: str, base: str) -> Any:
    """Create a node's processor or transformer.

    Raises:
        TopologyError: If the supplier fails, the object lacks a method, or a method is a coroutine function or a generator function.
    """
    made = supplied(node.name, node.supplier)
    missing = [name for name in ("init", method, "close") if not callable(getattr(made, name, None))]
    if missing:
        raise TopologyError(
            f"the supplier of processor {node.name!r} returned {made!r}, which has no {', '.join(missing)}(); "
            f"derive its class from millstream.{base}"
        )
    check_defined(node.name, made)
    for name, takes in (("init", ("context",)), (method, _TAKES[method]), ("close", ())):
        _check_method(node.name, getattr(made, name), name, takes)
    return made


def _check_method(node: str, called: Callable[..., object], name: str, takes: tuple[str, ...]) -> None:
    if is_coroutine(called):
        raise TopologyError(
            f"processor {node!r}: its {name}() is a coroutine function, which would not be awaited. Make it a plain method; make "
            "external calls with context.issue or process_async"
        )
    if isgeneratorfunction(called) or isasyncgenfunction(called):
        instead = (
            "return the value" if name == "transform" else "call self.context.forward(record) for each result"
        )
        raise TopologyError(
            f"processor {node!r}: its {name}() is a generator function, so none of its code would run. Remove yield, and {instead}"
        )
    if (problem := arguments_problem(called, takes)) is not None:
        raise TopologyError(f"processor {node!r}: {problem}")
