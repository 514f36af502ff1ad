"""Operators that keep or read global stores. ``GlobalTable`` runs as any table source does."""

from __future__ import annotations

from typing import Any

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.context import GlobalNodeContext
from millstream.core.engine.operators.processors import running
from millstream.core.model.record import Headers
from millstream.core.topology.global_nodes import GlobalJoin, GlobalProcess


@compile_node.register
def _compile_global_process(node: GlobalProcess, compiled: Compiled) -> Call:
    return running(node, compiled, GlobalNodeContext)


@compile_node.register
def _compile_global_join(node: GlobalJoin, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    fetch, key_bytes = runtime.global_stores[node.store.name].fetch, node.store.key.serialize
    selector, joiner, left = node.selector, node.joiner, node.kind == "left"

    def row_of(row_key: Any) -> Any:
        entry = None if row_key is None else fetch(key_bytes(row_key))
        return None if entry is None else entry[0]

    def global_join(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None:
            return runtime.drop("null value in a join")
        try:
            row_key = selector(key, value)
            if row_key is None and not left:
                return runtime.drop("null key in a join")
            row = row_of(row_key)
            if row is None and not left:
                return None
            joined = joiner(key, value, row)
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, joined, timestamp, headers)

    return global_join
