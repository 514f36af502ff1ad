"""Processors of the user's own."""

from __future__ import annotations

from typing import Any

from penstock.core.engine.compile import Call, Compiled, compile_node
from penstock.core.engine.context import NodeContext
from penstock.core.model.errors import TopologyError
from penstock.core.model.record import Headers, Record
from penstock.core.plan import nodes as n


@compile_node.register
def _(node: n.Process, compiled: Compiled) -> Call:
    return running(node, compiled, NodeContext)


def running(node: n.Process, compiled: Compiled, context_type: type[NodeContext]) -> Call:
    """Make the closure of a processor, and its context of a given type.

    Raises:
        TopologyError: If the supplier gives something else than a processor.
    """
    runtime, name = compiled.runtime, node.name
    children = compiled.named_children(node)
    context = context_type(name, node.stores, runtime, compiled.children(node), children)
    context.processor = _new_processor(node)
    compiled.contexts.append(context)
    process = context.processor.process

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            process(Record(key, value, timestamp, headers))
        except Exception as error:
            runtime.on_error("process", name, error)

    return run


def _new_processor(node: n.Process) -> Any:
    processor = node.supplier()
    missing = [
        method for method in ("init", "process", "close") if not callable(getattr(processor, method, None))
    ]
    if missing:
        raise TopologyError(
            f"the supplier of processor {node.name!r} gave {processor!r}, which has no {', '.join(missing)}(); "
            "let its class derive from penstock.Processor"
        )
    return processor
