"""Windowed aggregations: the part that all kinds of windows share.

The stream time of an operator is the largest timestamp of its records so far. It determines which records are late and which windows have
closed. It is part of the task's state, so a restarted operator refuses the same records as before.

A *windower* implements the differences between tumbling and hopping windows, calendar windows, sliding windows and sessions: how a record
is added to its windows, and how long after its end a window closes.

As in Kafka Streams, a record without a key is dropped, and in sliding windows also a record without a value. In other windows, a count
includes a record without a value, and a user's function receives None. Sum, minimum, maximum and mean, which Kafka Streams does not have,
drop it.

By default, the results of closed windows are emitted *before* the record that closes them is added. The results are the same, because a
record is never added to a closed window. But the time of the store has not advanced yet, so no closed window has expired, however far
stream time jumps. To check for closed windows takes one comparison. The function ``add`` is wrapped in two cases:

* With an *emit interval*, a record checks for closed windows only if the interval has passed since the last check, in wall-clock time. The
  wall clock is that of the micro-batches, and the time of the next check is part of the task's state, so a repeated micro-batch emits the
  same results. A check is not postponed if entries that it would read are about to expire.
* An aggregation that *loses* expired windows checks after the record, and emits only the windows that reads of the store still return
  then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from millstream.core.engine.compile import Call, Compiled, discard
from millstream.core.engine.idle import IdleClock
from millstream.core.engine.operators.aggregations import INCOMPLETE
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.runtime import Runtime
from millstream.core.engine.timeline import Timeline
from millstream.core.model.record import Headers
from millstream.core.model.windows import EmitStrategy
from millstream.core.state.contract import Memory
from millstream.core.topology.nodes import Node
from millstream.core.topology.window_nodes import SessionAggregate, SlidingAggregate, takes_null_values

Add = Callable[[Any, Any, int, Headers, int], bool]
"""Adds a record (key, value, timestamp, headers) to its windows from the first open one. Returns True if it was late for a window."""


class OpenWindows(Protocol):
    """The windows of an aggregation whose results have not been emitted."""

    def close(self, stream_time: int, headers: Headers, /) -> None:
        """Emit the results of the windows that are closed at a stream time."""

    def next_close(self) -> int:
        """Return the stream time at which the next window closes; NEVER if no window is open."""

    def gone_at(self) -> int:
        """Return the stream time at which the first of these windows expires from its store."""


class OpenInTimeline:
    """Open windows in a timeline. Owned by the task."""

    def __init__(self, node: SlidingAggregate | SessionAggregate, compiled: Compiled, wait_ms: int) -> None:
        assert node.open is not None
        stores = compiled.runtime.stores
        self._timeline = Timeline(stores[node.open.name])
        self._store = stores[node.store.name]
        self._key = node.store.key.deserialize
        self._wait = wait_ms
        self._child = compiled.children(node)
        self._loses = node.emit.loses

    def next_close(self) -> int:
        return min(self._timeline.next + self._wait + 1, NEVER)

    def gone_at(self) -> int:
        return int(self._store.gone_at(self._timeline.next))


def checking(runtime: Runtime, memory: Memory, windower: Windower, windows: OpenWindows) -> Add:
    """Wrap ``add`` to check for closed windows at the emit interval or after the record."""
    add, interval, close, gone_at = windower.add, windower.emit.every_ms, windows.close, windows.gone_at
    checks_from = windower.checks_from_ms

    def check(time: int, headers: Headers, *, forced: bool) -> None:
        now = runtime.now_ms
        if not now < memory.get("next_look", 0) <= now + interval:  # or the clock has moved back
            memory["next_look"] = now + interval
            close(time, headers)
        elif forced:
            close(time, headers)

    def checks(timestamp: int, first_open: int) -> bool:
        return checks_from is None or timestamp >= max(checks_from, first_open)

    def check_before(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        if checks(timestamp, first_open):
            time = memory["time"]
            check(time, headers, forced=gone_at() <= time)
        return add(key, value, timestamp, headers, first_open)

    def check_after(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        late = add(key, value, timestamp, headers, first_open)
        if checks(timestamp, first_open):
            check(memory["time"], headers, forced=False)
        return late

    return check_after if windower.emit.loses else check_before


NO_KEY: Final = "null key in a windowed aggregation"
LATE: Final = "late for a window"


@dataclass(frozen=True)
class Windower:
    """The part of an aggregation that depends on the kind of windows.

    Attributes:
        open_ms: The difference between stream time and the ``first_open`` that ``add`` receives, ms.
        open: The windows whose results have not been emitted; None if each update is emitted.
        closes_after_ms: How long after its end a window closes, ms of stream time. A window that includes its end closes 1 ms
            later.
        checks_from_ms: Late records and those with smaller timestamps do not check for closed windows; None if all records check.
        no_key: Reason under which records without a key are counted as dropped.
        observe: Advances the time of the store to the timestamp of a record, which may belong to another key range.
    """

    add: Add
    open_ms: int
    open: OpenWindows | None
    emit: EmitStrategy
    closes_after_ms: int
    checks_from_ms: int | None = None
    no_key: str = NO_KEY
    observe: Callable[[int], None] = discard


class Aggregation(NamedTuple):
    """A compiled windowed aggregation.

    Attributes:
        advance: Advances the stream time without closing windows.
        clock: Detects idleness; None unless the aggregation closes when idle.
    """

    call: Call
    advance: Callable[[int], None]
    clock: IdleClock | None


def aggregation(node: Node, compiled: Compiled, windower: Windower) -> Aggregation:
    runtime, windows, emit = compiled.runtime, windower.open, windower.emit
    memory, late = runtime.memory(node.remembered_as), compiled.late(node) or discard
    add, no_key, with_nulls = windower.add, windower.no_key, takes_null_values(node)
    close_first = windows.close if windows is not None and emit.at_once else None
    if windows is not None and not emit.at_once:
        add = checking(runtime, memory, windower, windows)
    open_ms, time = windower.open_ms, memory.get("time", -1)
    first_open: int = time - open_ms

    def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        nonlocal time, first_open
        if key is None:
            return runtime.drop(no_key)
        if value is None and not with_nulls:
            return runtime.drop(INCOMPLETE)
        if timestamp > time:
            memory["time"] = time = timestamp
            first_open = timestamp - open_ms
            if close_first is not None:
                close_first(timestamp, headers)
        return (
            late(key, value, timestamp, headers) if add(key, value, timestamp, headers, first_open) else None
        )

    def advance(to: int) -> None:
        nonlocal time, first_open
        if to > time:
            memory["time"] = time = to
            first_open = to - open_ms

    def move_time(to: int) -> None:
        advance(to)
        if windows is not None:
            windows.close(time, ())

    _keep_time(node, compiled, windower, move_time)
    if windows is None or (idle_ms := emit.close_idle_after_ms) is None:
        return Aggregation(aggregate, advance, None)
    clock = runtime.idle_clocks[node.name] = IdleClock(memory, idle_ms, windows.next_close, move_time)
    return Aggregation(clock.watching(aggregate), advance, clock)


def _keep_time(node: Node, compiled: Compiled, windower: Windower, move_time: Callable[[int], None]) -> None:
    """Let suppressed tables close the windows of an aggregation, and the time of the whole partition advance its stream time."""
    runtime = compiled.runtime
    memory, closes_after_ms = runtime.memory(node.remembered_as), windower.closes_after_ms

    def keep_time(to: int) -> None:
        if to > memory.get("time", -1):
            move_time(to)
            windower.observe(to)

    runtime.close_windows[node.name] = lambda end: move_time(end + closes_after_ms)
    compiled.keep_stream_time(node, keep_time)
