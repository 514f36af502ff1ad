"""Emission: when a windowed aggregation forwards results, the same for all kinds of windows.

An aggregation forwards each update itself. One that emits when windows close does so, by default, before it adds the record
that closes them: it knows from two numbers whether there are any. Its function is wrapped where something else decides:

* With an *emit interval*, a record checks for closed windows only if so much wall-clock time has passed since the last check,
  whether that found something or not. The wall clock is that of the micro-batches, and the time of the next check is part of
  the task's state, so a repeated micro-batch emits the same again. A check is not delayed when entries that it would read are
  about to expire.
* An aggregation that *loses* expired windows checks after the record instead of before it, and emits only what reads of the
  store then still return.
* One that closes when idle watches its input (``millstream.core.engine.idle``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.core.engine.compile import Call, Compiled
from millstream.core.engine.idle import IdleClock
from millstream.core.model.record import Headers
from millstream.core.model.windows import EmitStrategy
from millstream.core.topology.nodes import Node


class OpenWindows(Protocol):
    """The windows of an aggregation whose results were not emitted yet."""

    @property
    def close(self) -> Callable[[int, Headers], None]:
        """Emits the results of the windows that have closed at a stream time."""

    @property
    def next_close(self) -> Callable[[], int]:
        """Returns the stream time at which the next window closes, NEVER if none is open."""

    @property
    def gone_at(self) -> Callable[[], int]:
        """Returns the stream time at which the first window expires from its store."""


@dataclass(frozen=True)
class Aggregation:
    """What the kind of windows decides about an aggregation.

    Attributes:
        call: Adds a record, and emits what it does itself.
        advance: Moves the stream time, which is in the memory under ``time``, to a later time; closes nothing.
        windows: The open windows; None if each update is emitted.
        emit: When results are emitted.
        closes_after_ms: How long after its end a window closes, in stream time. A window that holds its end closes 1 ms
            later than one that does not.
        takes_null_values: Whether records without a value move stream time.
    """

    call: Call
    advance: Callable[[int], None]
    windows: OpenWindows | None
    emit: EmitStrategy
    closes_after_ms: int
    takes_null_values: bool


def emitting(node: Node, compiled: Compiled, aggregation: Aggregation) -> tuple[Call, IdleClock | None]:
    """Return the function of an aggregation that also emits by interval or when idle, and what watches its input."""
    runtime, windows, idle_ms = compiled.runtime, aggregation.windows, aggregation.emit.close_idle_after_ms
    memory, wait = runtime.memory(node.remembered_as), aggregation.closes_after_ms

    def move_time(to: int) -> None:
        aggregation.advance(to)
        if windows is not None:
            windows.close(memory.get("time", -1), ())

    runtime.close_windows[node.name] = lambda end: move_time(end + wait)
    if windows is None:
        return aggregation.call, None
    call = aggregation.call
    if not aggregation.emit.at_once:
        call = _checking(node, compiled, aggregation, windows)
    if idle_ms is None:
        return call, None
    clock = IdleClock(runtime, node.remembered_as, idle_ms, windows.next_close, move_time)
    return clock.watching(call), clock


def _checking(node: Node, compiled: Compiled, aggregation: Aggregation, windows: OpenWindows) -> Call:
    """Return the function of an aggregation that checks for closed windows by the emit interval, or after its records."""
    runtime, memory = compiled.runtime, compiled.runtime.memory(node.remembered_as)
    interval, aggregate = aggregation.emit.every_ms, aggregation.call
    takes_null_values, close, gone_at = aggregation.takes_null_values, windows.close, windows.gone_at

    def check(time: int, headers: Headers, *, forced: bool) -> None:
        now = runtime.now_ms
        if now >= memory.get("next_look", 0):
            memory["next_look"] = now + interval
            close(time, headers)
        elif forced:
            close(time, headers)

    def check_before(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None and (takes_null_values or value is not None):
            time = max(memory.get("time", -1), timestamp)
            check(time, headers, forced=gone_at() <= time)
        aggregate(key, value, timestamp, headers)

    def check_after(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        aggregate(key, value, timestamp, headers)
        if key is not None and (takes_null_values or value is not None):
            check(memory["time"], headers, forced=False)

    return check_after if aggregation.emit.loses else check_before
