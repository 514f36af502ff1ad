"""Aggregations by calendar windows, whose bounds a user's function returns.

Windows are stored in the order of their starts, and a window with a later start does not end earlier. The closed windows are therefore
the first entries of the store; ``closed`` in the operator's memory is the start of the last window whose result was emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.operators.windows.window_operator import LATE, Add, Windower, aggregation
from millstream.core.engine.punctuate import NEVER
from millstream.core.model.record import Headers
from millstream.core.model.windowed import Windowed
from millstream.core.state.keys import FOREVER
from millstream.core.topology.window_nodes import CalendarAggregate


@compile_node.register
def _compile(node: CalendarAggregate, compiled: Compiled) -> Call:
    windows = _OpenCalendarWindows(node, compiled) if node.emit.at_close else None
    add, grace = _adding(node, compiled, windows), node.windows.grace_ms
    observe = _observing(node, compiled)
    return aggregation(
        node, compiled, Windower(add, grace - 1, windows, node.emit, grace, observe=observe)
    ).call


def _observing(node: CalendarAggregate, compiled: Compiled) -> Callable[[int], None]:
    """Return a function that advances the time of the store to the last window of a record, which may belong to another key range."""
    store, windows_of = compiled.runtime.stores[node.store.name], node.windows.checked

    def observe(time: int) -> None:
        with suppress(Exception):  # the task that processes the record reports the error
            for start, _ in windows_of(time):
                store.observe(start)

    return observe


def _adding(node: CalendarAggregate, compiled: Compiled, open_ones: _OpenCalendarWindows | None) -> Add:
    runtime, name, store = compiled.runtime, node.name, compiled.runtime.stores[node.store.name]
    windows_of, child = node.windows.checked, compiled.children(node)
    initializer, aggregator, old_again = node.initializer, node.aggregator, compiled.reads_old_again(node)

    def add(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        try:
            windows = windows_of(timestamp)
        except Exception as error:
            runtime.on_error("process", name, error)
            return False
        if not windows:
            runtime.drop("outside of all windows")
            return False
        failed = False
        for start, end in windows:
            if end < first_open:
                runtime.drop(LATE)
                continue
            old, then = None, timestamp
            try:
                entry = store.fetch(key, start)
                if entry is not None:
                    new, then = aggregator(key, value, entry[0]), max(entry[1], timestamp)
                    old = store.fetch(key, start)[0] if old_again else entry[0]
                else:
                    new = value if initializer is None else aggregator(key, value, initializer())
                store.put(key, None if new is None else (new, then), start)
            except Exception as error:
                if not failed:  # a record fails once, not in each of its windows
                    runtime.on_error("process", name, error)
                failed = True
                continue
            if open_ones is not None:
                open_ones.began(end)
            else:
                child(Windowed(key, start, end), new, old, then, headers)
        return windows[0][1] < first_open

    return add


class _OpenCalendarWindows:
    """The open windows, for results at close. Owned by the task."""

    def __init__(self, node: CalendarAggregate, compiled: Compiled) -> None:
        self._store, self._memory = (
            compiled.runtime.stores[node.store.name],
            compiled.runtime.memory(node.remembered_as),
        )
        self._loses, self._grace = node.emit.loses, node.windows.grace_ms
        self._child = compiled.children(node)
        self._due = -1
        """A lower bound of the stream time at which the next window closes."""

    def began(self, end: int) -> None:
        self._due = min(self._due, end + self._grace)

    def close(self, stream_time: int, headers: Headers) -> None:
        if stream_time < self._due:
            return
        self._due = NEVER
        first_seen = self._store.oldest if self._loses else 0
        for windowed, (value, timestamp) in self._open():
            if windowed.end + self._grace > stream_time:
                self._due = windowed.end + self._grace
                return
            self._memory["closed"] = windowed.start
            if windowed.start >= first_seen:
                self._child(windowed, value, None, timestamp, headers)

    def next_close(self) -> int:
        first = next(self._open(), None)
        return NEVER if first is None else int(first[0].end) + self._grace

    def gone_at(self) -> int:
        return int(self._store.gone_at(self._last_closed_start + 1))

    def _open(self) -> Iterator[tuple[Windowed[Any], Any]]:
        found: Iterator[tuple[Windowed[Any], Any]] = self._store.stored_windows(
            self._last_closed_start + 1, FOREVER
        )
        return found

    @property
    def _last_closed_start(self) -> int:
        """Start of the last window whose result was emitted. Every earlier window was emitted or has no entry."""
        closed: int = self._memory.get("closed", -1)
        return closed
