"""Aggregations by tumbling and hopping windows, which have a fixed size and aligned starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from millstream.core.engine.compile import Call, Compiled, compile_node, discard
from millstream.core.engine.idle import IdleClock
from millstream.core.engine.operators.windows.window_operator import LATE, Add, Windower, aggregation
from millstream.core.engine.punctuate import NEVER
from millstream.core.model.record import Headers
from millstream.core.model.windowed import Windowed
from millstream.core.state.keys import FOREVER
from millstream.core.topology.window_nodes import WindowedAggregate


@compile_node.register
def _compile(node: WindowedAggregate, compiled: Compiled) -> Call:
    closing = _closing(node, compiled) if node.emit.at_close else None
    add, grace = _adding(node, compiled), node.windows.grace_ms
    open_ms = node.windows.size_ms + grace - 1
    store, starts = compiled.runtime.stores[node.store.name], node.windows.starts
    windower = Windower(
        add,
        open_ms,
        closing,
        node.emit,
        grace,
        observe=lambda time: store.observe(max(starts(time))),
    )
    made = aggregation(node, compiled, windower)
    compiled.shared[node.name] = Shared(made.advance, closing, made.clock)
    return made.call


def _adding(node: WindowedAggregate, compiled: Compiled) -> Add:
    runtime, name, windows = compiled.runtime, node.name, node.windows
    child = None if node.emit.at_close else compiled.children(node)
    key_bytes, initializer, aggregator = node.store.key.serialize, node.initializer, node.aggregator
    size, starts, tumbling = windows.size_ms, windows.starts, windows.size_ms == windows.advance_ms
    last_start, old_again = FOREVER - size, child is not None and compiled.reads_old_again(node)
    open_slot, slots = _opening(node, compiled)

    def add(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        late = failed = False
        for start in (timestamp - timestamp % size,) if tumbling else starts(timestamp):
            if start < first_open:
                late = True
                runtime.drop(LATE)
                continue
            stored_key_of, get, put = slots.get(start) or open_slot(start, first_open)
            try:
                stored_key = stored_key_of(key_bytes(key))
                entry = get(stored_key)
                if entry is not None:
                    old, then = entry
                    then = timestamp if timestamp > then else then
                    new = aggregator(key, value, old)
                    if old_again:
                        old = get(stored_key)[0]
                else:
                    old, then = None, timestamp
                    new = value if initializer is None else aggregator(key, value, initializer())
                put(stored_key, None if new is None else (new, then))
            except Exception as error:
                if not failed:  # a record fails once, not in each of its windows
                    runtime.on_error("process", name, error)
                failed = True
                continue
            if child is not None:
                end = start + size if start <= last_start else FOREVER
                child(_windowed(Windowed, (key, start, end)), new, old, then, headers)
        return late

    return add


class Shared(NamedTuple):
    """Objects that the columnar form of an aggregation shares with its function of one record.

    Attributes:
        advance: Advances the operator's stream time without closing windows.
        closing: Closes windows; None if results are not emitted at close.
        clock: Detects idleness; None unless the aggregation closes when idle.
    """

    advance: Callable[[int], None]
    closing: WindowClosing | None = None
    clock: IdleClock | None = None


_windowed: Any = tuple.__new__
"""Creates a ``Windowed`` at half the cost of its constructor."""

Slot = tuple[Callable[[bytes], bytes], Callable[[bytes], Any], Callable[[bytes, Any], None]]
"""Access to a window's entries in the store: functions that return the row key of a serialised key, read a row, and write a row."""


def _opening(
    node: WindowedAggregate, compiled: Compiled
) -> tuple[Callable[[int, int], Slot], Mapping[int, Slot]]:
    """Return a function that opens the slot of a window, and the dict of open slots.

    Slots of closed windows are removed whenever the number of slots has doubled, so the cost per window is constant. Slots are not kept if
    another node writes to the same store, because that node may let a slot expire. The rows of a window that has expired can neither be
    read nor written, so each result of such a window begins anew, as in Kafka Streams.
    """
    store, fits, shared = compiled.runtime.stores[node.store.name], node.fits, node.shared
    slots: dict[int, Slot] = {}
    limit = 64

    def open_slot(start: int, first_open: int) -> Slot:
        nonlocal limit
        share = store.open_window(start)
        if share is None:
            return _NO_SLOT
        stored_key_of, rows = share
        put = rows.put_fitting if fits else rows.put
        if shared:
            return stored_key_of, rows.get if start >= store.oldest else _no_row, put
        slot: Slot = (stored_key_of, rows.get, put)
        if len(slots) >= limit:
            for closed in [other for other in slots if other < first_open]:
                del slots[closed]
            limit = max(64, 2 * len(slots))
        slots[start] = slot
        return slot

    return open_slot, slots


def _no_row(stored_key: bytes) -> None:
    return None


_NO_SLOT: Final[Slot] = (lambda key: key, _no_row, discard)
"""Access to a window that is not in the store any more."""


class WindowClosing(NamedTuple):
    """Closes the windows of an aggregation and emits their results.

    Attributes:
        close: Emits the results of the windows that are closed at a stream time.
        next_close: Returns the stream time at which the next window with records closes; NEVER if there is none.
        gone_at: Returns the stream time at which the first window whose result has not been emitted expires.
        due: Returns the stream time at which the next window closes, with or without records.
    """

    close: Callable[[int, Headers], None]
    next_close: Callable[[], int]
    gone_at: Callable[[], int]
    due: Callable[[], int]


def _closing(node: WindowedAggregate, compiled: Compiled) -> WindowClosing:
    child, windows = compiled.children(node), node.windows
    store, memory = compiled.runtime.stores[node.store.name], compiled.runtime.memory(node.remembered_as)
    between = store.fetch_all if node.emit.loses else store.stored_windows
    # The start, not the time: an edited grace period must neither leave out a window nor close one twice.
    closed: int = (
        memory["last_closed"] if "last_closed" in memory else windows.last_closed(memory.get("closed", -1))
    )
    due = closed + windows.advance_ms + windows.size_ms + windows.grace_ms

    def close(stream_time: int, headers: Headers) -> None:
        nonlocal closed, due
        if stream_time < due:
            return
        before, closed = closed, windows.last_closed(stream_time)
        due = closed + windows.advance_ms + windows.size_ms + windows.grace_ms
        memory["last_closed"] = closed
        for windowed, (value, timestamp) in between(before + 1, closed):
            child(windowed, value, None, timestamp, headers)

    def next_close() -> int:
        first = next(between(max(closed + 1, 0), FOREVER), None)
        return NEVER if first is None else int(first[0].end) + windows.grace_ms

    return WindowClosing(close, next_close, lambda: store.gone_at(closed + 1), lambda: due)
