"""Windowed aggregations: of streams by key and window.

The stream time of an operator is the largest timestamp it has seen. It decides which records are late and which windows
have closed, and it is remembered over restarts: a restarted operator accepts nothing that it would have refused before.

When results are given at the close of windows, closed windows are looked for *before* the record that moved stream time is
added. They are the same windows, since a record is never added to a closed one; but the store's time has not moved yet, so
that none of them can have expired, however far time jumps. Looking less often, or later, is for those who ask for it
(``millstream.core.engine.operators.emission``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.idle import IdleClock
from millstream.core.engine.operators.emission import Aggregation, emitting
from millstream.core.engine.operators.nulls import NO_KEY, takes_null_values, without_null_values
from millstream.core.engine.runtime import NEVER
from millstream.core.model.record import Headers
from millstream.core.model.windowed import Windowed
from millstream.core.state.keys import FOREVER
from millstream.core.topology.windowed import WindowedAggregate


@compile_node.register
def _(node: WindowedAggregate, compiled: Compiled) -> Call:
    runtime, name = compiled.runtime, node.name
    emit = node.emit
    closing = _closing(node, compiled) if emit.at_close else None
    close_first = closing.close if closing is not None and emit.at_once else None
    child = None if emit.at_close else compiled.children(node)
    windows, key_bytes = node.windows, node.store.key.serialize
    initializer, aggregator = node.initializer, node.aggregator
    size, grace, starts = windows.size_ms, windows.grace_ms, windows.starts
    tumbling, last_start = size == windows.advance_ms, FOREVER - size
    memory = runtime.memory(node.remembered_as)
    time: int = memory.get("time", -1)
    last_closed = time - grace - size
    opened, slots = _opening(node, compiled)

    def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        nonlocal time, last_closed
        if key is None:
            return runtime.drop(NO_KEY)
        if timestamp > time:
            memory["time"] = time = timestamp
            last_closed = timestamp - grace - size
            if close_first is not None:
                close_first(timestamp, headers)
        for start in (timestamp - timestamp % size,) if tumbling else starts(timestamp):
            if start <= last_closed:
                runtime.drop("late for a window")
                continue
            slot = slots.get(start) or opened(start, last_closed)
            if slot is None:
                continue
            stored_key_of, get, put = slot
            old, then = None, timestamp
            try:
                stored_key = stored_key_of(key_bytes(key))
                entry = get(stored_key)
                if entry is not None:
                    old, then = entry
                    if timestamp > then:
                        then = timestamp
                    new = aggregator(key, value, old)
                elif initializer is not None:
                    new = aggregator(key, value, initializer())
                else:
                    new = value
                put(stored_key, None if new is None else (new, then))
            except Exception as error:
                runtime.on_error("process", name, error)
                continue
            if child is not None:
                end = start + size if start <= last_start else FOREVER
                child(_windowed(Windowed, (key, start, end)), new, old, then, headers)
        return None

    def advance(to: int) -> None:
        nonlocal time, last_closed
        if to > time:
            memory["time"] = time = to
            last_closed = to - grace - size

    call: Call = aggregate
    late = compiled.late(node)
    if late is not None:
        call = _telling(node, compiled, aggregate, late)
    values = takes_null_values(node.fold)
    if not values:
        call = without_null_values(runtime, call)
    call, clock = emitting(node, compiled, Aggregation(call, advance, closing, emit, grace, values))
    compiled.shared[name] = Shared(advance, closing, clock)
    return call


class Shared(NamedTuple):
    """What the columnar form of an aggregation needs of its function of one record.

    Attributes:
        advance: Lets the operator's stream time advance to a time, closing nothing.
        closing: Its closed windows, if results are given at the close of windows.
        clock: What watches its input, if it closes idle.
    """

    advance: Callable[[int], None]
    closing: Closing | None = None
    clock: IdleClock | None = None


def _telling(node: WindowedAggregate, compiled: Compiled, aggregate: Call, late: Call) -> Call:
    """Give the function of an aggregation as one that also hands on the records that were late for one of their windows."""
    memory, starts = compiled.runtime.memory(node.remembered_as), node.windows.starts
    length = node.windows.size_ms + node.windows.grace_ms

    def telling(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        aggregate(key, value, timestamp, headers)
        if key is not None and starts(timestamp)[0] + length <= memory["time"]:
            late(key, value, timestamp, headers)

    return telling


_windowed: Any = tuple.__new__
"""Makes a Windowed at half the price of its constructor."""

Slot = tuple[Callable[[bytes], bytes], Callable[[bytes], Any], Callable[[bytes, Any], None]]
"""A window's share of its store: gives a serialised key's place, reads it, writes it."""


def _opening(
    node: WindowedAggregate, compiled: Compiled
) -> tuple[Callable[[int, int], Slot | None], Mapping[int, Slot]]:
    """Make the function that opens the slot of a window, and the dict where open slots are found again.

    Slots of closed windows are forgotten when their number has doubled, so that the work per window stays the same however
    many are open. Where another node writes to the store, that may let a slot expire which is open here: none is remembered.
    """
    store, fits, shared = compiled.runtime.stores[node.store.name], node.fits, node.shared
    slots: dict[int, Slot] = {}
    limit = 64

    def opened(start: int, last_closed: int) -> Slot | None:
        nonlocal limit
        share = store.open_window(start)
        if share is None:
            return None
        stored_key_of, rows = share
        slot: Slot = (stored_key_of, rows.get, rows.put_fitting if fits else rows.put)
        if shared:
            return slot
        if len(slots) >= limit:
            for closed in [other for other in slots if other <= last_closed]:
                del slots[closed]
            limit = max(64, 2 * len(slots))
        slots[start] = slot
        return slot

    return opened, slots


class Closing(NamedTuple):
    """The closed windows of an aggregation that were not given yet.

    Attributes:
        close: Gives the results of the windows that close as stream time reaches a time.
        next_close: Gives when the next one closes, in stream time.
        gone_at: Gives the stream time at which the first one is dropped.
        due: Gives the stream time at which windows close next, whether they have records or not.
    """

    close: Callable[[int, Headers], None]
    next_close: Callable[[], int]
    gone_at: Callable[[], int]
    due: Callable[[], int]


def _closing(node: WindowedAggregate, compiled: Compiled) -> Closing:
    child, windows = compiled.children(node), node.windows
    store, memory = compiled.runtime.stores[node.store.name], compiled.runtime.memory(node.remembered_as)
    between = store.fetch_all if node.emit.loses else store.kept
    closed: int = windows.last_closed(memory.get("closed", -1))
    due = closed + windows.advance_ms + windows.size_ms + windows.grace_ms

    def close(stream_time: int, headers: Headers) -> None:
        nonlocal closed, due
        if stream_time < due:
            return
        before, closed = closed, windows.last_closed(stream_time)
        due = closed + windows.advance_ms + windows.size_ms + windows.grace_ms
        memory["closed"] = stream_time
        for windowed, (value, timestamp) in between(before + 1, closed):
            child(windowed, value, None, timestamp, headers)

    def next_close() -> int:
        first = next(between(max(closed + 1, 0), FOREVER), None)
        return NEVER if first is None else int(first[0].end) + windows.grace_ms

    return Closing(close, next_close, lambda: store.gone_at(closed + 1), lambda: due)
