"""Joins of two streams: each side stores its records in a window store and looks up partners in the store of the other side.

The join has a separate stream time: the largest timestamp on either side. It is kept over restarts, in the memory of the node downstream
of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.core.engine.compile import Call, Compiled, DueResults, compile_node
from millstream.core.engine.operators.unmatched import Alone, Unmatched
from millstream.core.model.record import Headers, Times
from millstream.core.state.values import Values, copier
from millstream.core.topology import join_nodes as j


@compile_node.register
def _compile_stream_join(node: j.StreamJoin, compiled: Compiled) -> Call:
    runtime, name, child, join = compiled.runtime, node.name, compiled.children(node), _Side(node, compiled)
    memory, alone, unmatched = runtime.memory(node.remembered_as), join.alone, join.unmatched
    put, final, combine = join.mine.put, node.times.final, join.combine
    memory.setdefault("time", -1)
    emit_closed = _emitting(node, compiled, unmatched, child)

    def stream_join(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        time = memory["time"]
        if timestamp > time:
            time = memory["time"] = timestamp
        if value is None or (key is None and not alone):
            return runtime.drop("null key or value in a join")
        closes = unmatched is not None and key is not None and (final or timestamp == time)
        if closes and not emit_closed(headers):
            return None
        try:
            if key is None:
                results = [(None, combine(None, value, None), timestamp)]
            else:
                results = []
                kept = join.meet(key, value, timestamp, time, results)
                put(key, kept, timestamp)
        except Exception as error:
            return runtime.on_error("process", name, error)
        for result in results:
            child(*result, headers)
        return None

    _keep_time(node, compiled, join, emit_closed)
    late = compiled.late(node)
    return stream_join if late is None else _with_late_records(node, memory, stream_join, late)


def _emitting(
    node: j.StreamJoin, compiled: Compiled, unmatched: Unmatched | None, child: Call
) -> Callable[[Headers], bool]:
    """Return a function that forwards the results of unmatched records whose windows have closed.

    It returns False if one of them fails. The error policy then applies to the record that closes the windows, as in Kafka Streams. The
    results before it are forwarded in any case.
    """
    runtime, name = compiled.runtime, node.name
    memory = runtime.memory(node.remembered_as)

    def emit_closed(headers: Headers) -> bool:
        assert unmatched is not None
        results: list[Alone] = []
        failed: Exception | None = None
        try:
            unmatched.close(memory["time"], results)
        except Exception as error:
            failed = error
        for result in results:
            child(*result, headers)
        if failed is not None:
            runtime.on_error("process", name, failed)
        return failed is None

    return emit_closed


def _keep_time(
    node: j.StreamJoin, compiled: Compiled, side: _Side, emit_closed: Callable[[Headers], bool]
) -> None:
    """In the task of a key range, let the time of the whole partition advance the join and the side's store, and close windows."""
    unmatched, observe = side.unmatched, side.mine.observe
    memory = compiled.runtime.memory(node.remembered_as)

    def keep_time(times: Times) -> None:
        memory["time"] = max(memory["time"], times.all)
        observe(times.valued)

    compiled.keep_time(node, keep_time)
    if unmatched is None or not node.left:
        return

    merge = next(each.name for each in compiled.children_of(node) if isinstance(each, j.StreamMerge))
    compiled.emit_when_due(DueResults(merge, lambda: unmatched.due(memory["time"]), lambda: emit_closed(())))


def _with_late_records(node: j.StreamJoin, memory: Mapping[str, Any], join: Call, late: Call) -> Call:
    """Wrap the function of a side to forward late records, whose windows had closed before they arrived."""
    closes = node.times.closes(left=node.left)

    def join_and_forward_late(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        join(key, value, timestamp, headers)
        if key is not None and value is not None and timestamp + closes < memory["time"]:
            late(key, value, timestamp, headers)

    return join_and_forward_late


class _Side:
    """One side of a join. Owned by the task."""

    def __init__(self, node: j.StreamJoin, compiled: Compiled) -> None:
        times, stores = node.times, compiled.runtime.stores
        self.mine = stores[node.mine.name]
        self.alone = node.kind == "outer" or (node.kind == "left" and node.left)
        self.unmatched = None
        if node.unmatched is not None:
            self.unmatched = Unmatched(node, node.unmatched, compiled.runtime)
        self._fetch = stores[node.other.name].fetch
        self._joiner, self._left = node.joiner, node.left
        values = node.mine.value
        # A value that cannot be stored fails here, before its partners count as matched.
        self._copy = Values(node.mine.name, values).checked if values.immutable else copier(values)
        self._before, self._after = (times.before, times.after) if node.left else (times.after, times.before)
        if times.prior:
            self._after = min(self._after, -1)
        # A window that ends before time 0 has no records. Kafka Streams lets it end at 0.
        self._least_end = self._after if times.final or times.prior else 0
        # When the window has ended longer ago than this, a record without a partner has its unmatched result at once.
        self._patience = times.grace if times.final else 0
        other_alone = node.kind == "outer" or (node.kind == "left" and not node.left)
        self._final_after = times.closes(left=not node.left) if times.final and other_alone else None

    def combine(self, key: Any, this: Any, other: Any) -> Any:
        """Call the joiner with a value of this side and a value of the other side; the left value is the first argument."""
        return self._joiner(key, this, other) if self._left else self._joiner(key, other, this)

    def meet(self, key: Any, value: Any, timestamp: int, time: int, results: list[Any]) -> Any:
        """Append the results of a record with its partners. Store a record without partners for its unmatched result.

        Returns:
            The value to store. The joiner may change the value that it gets.
        """
        low, high = max(timestamp - self._before, 0), max(timestamp + self._after, self._least_end)
        if self._final_after is not None:
            low = max(low, time - self._final_after)
        partners = list(self._fetch(key, low, high)) if low <= high else []
        kept = self._copy(value) if partners else value
        for number, (then, other) in enumerate(partners):
            this = self._copy(kept) if number else value
            results.append((key, self.combine(key, this, other), max(timestamp, then)))
        if self.unmatched is not None:  # if the record fails, its partners remain without one
            for then, _ in partners:
                self.unmatched.matched(key, then)
        if partners or not self.alone or self.unmatched is None:
            return kept
        if high + self._patience < time:
            kept = self._copy(value)
            results.append((key, self.combine(key, value, None), timestamp))
        else:
            self.unmatched.add(key, value, timestamp)
        return kept
