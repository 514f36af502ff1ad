"""Aggregations by session: a record joins the sessions around it, and makes one of them.

A session that grows is another session, since its bounds are part of its key: the old one is deleted, and the new one put
and forwarded. The stream time of an operator is what ``penstock.core.engine.operators.windows`` says.
"""

from __future__ import annotations

from typing import Any

from penstock.core.engine.compile import Call, Compiled, compile_node
from penstock.core.model.record import Headers
from penstock.core.model.windowed import Windowed
from penstock.core.plan.windowed import SessionAggregate


@compile_node.register
def _(node: SessionAggregate, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store, key_bytes = runtime.stores[node.store.name], node.store.key.serialize
    find, write = store.find, store.write
    initializer, aggregator, merger = node.initializer, node.aggregator, node.merger
    gap, grace = node.windows.gap_ms, node.windows.grace_ms
    memory = runtime.memory(name)
    time: int = memory.get("time", -1)

    def aggregated(key: Any, value: Any, found: list[tuple[int, int, Any]]) -> Any:
        so_far = None if initializer is None else initializer()
        for _, _, aggregate in found:
            first = initializer is None and so_far is None
            so_far = aggregate if first else merger(key, so_far, aggregate)
        return value if initializer is None and so_far is None else aggregator(key, value, so_far)

    def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        nonlocal time
        if key is None:
            return runtime.drop("null key in a windowed aggregation")
        if timestamp > time:
            memory["time"] = time = timestamp
        try:
            stored_key = key_bytes(key)
            found = list(find(stored_key, timestamp - gap, timestamp + gap))
            start = min((session[0] for session in found), default=timestamp)
            end = max((session[1] for session in found), default=timestamp)
            start, end = min(start, timestamp), max(end, timestamp)
            if end < time - gap - grace:
                return runtime.drop("late for a session")
            new = aggregated(key, value, found)
            write(stored_key, start, end, new)
            for old_start, old_end, _ in found:
                if (old_start, old_end) != (start, end):
                    write(stored_key, old_start, old_end, None)
        except Exception as error:
            return runtime.on_error("process", name, error)
        if start == end:
            return child(Windowed(key, start, end), new, found[0][2] if found else None, end, headers)
        for old_start, old_end, old in found:
            child(Windowed(key, old_start, old_end), None, old, old_end, headers)
        return child(Windowed(key, start, end), new, None, end, headers)

    return aggregate
