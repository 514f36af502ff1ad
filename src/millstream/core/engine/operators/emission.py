"""Emission: when a windowed aggregation forwards the results of windows that have closed.

By default they are emitted *before* the record that closes them is added. They are the same windows, since a record is never
added to a closed one; but the store's time has not moved yet, so that none of them can have expired, however far time jumps.
The aggregation knows from two numbers whether there are any. Its function is wrapped where something else decides:

* With an *emit interval*, a record checks for closed windows only if so much wall-clock time has passed since the last check,
  whether that found something or not. The wall clock is that of the micro-batches, and the time of the next check is part of
  the task's state, so a repeated micro-batch emits the same again. A check is not delayed when entries that it would read are
  about to expire.
* An aggregation that *loses* expired windows checks after the record instead of before it, and emits only what reads of the
  store then still return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from millstream.core.engine.runtime import Runtime
from millstream.core.model.record import Headers
from millstream.core.model.windows import EmitStrategy

Add = Callable[[Any, Any, int, Headers, int], bool]
"""Adds a record (key, value, timestamp, headers) to its windows that begin or end at a time or later; others have closed.

It returns whether the record was late for one of its windows."""


class OpenWindows(Protocol):
    """The windows of an aggregation whose results were not emitted yet."""

    def close(self, stream_time: int, headers: Headers, /) -> None:
        """Emit the results of the windows that have closed at a stream time."""

    def next_close(self) -> int:
        """Return the stream time at which the next window closes, NEVER if none is open."""

    def gone_at(self) -> int:
        """Return the stream time at which the first window expires from its store."""


def checking(
    runtime: Runtime, memory: dict[str, Any], emit: EmitStrategy, windows: OpenWindows, add: Add
) -> Add:
    """Return a function that adds a record and checks for closed windows by the emit interval, or after the record."""
    interval, close, gone_at = emit.every_ms, windows.close, windows.gone_at

    def check(time: int, headers: Headers, *, forced: bool) -> None:
        now = runtime.now_ms
        if now >= memory.get("next_look", 0):
            memory["next_look"] = now + interval
            close(time, headers)
        elif forced:
            close(time, headers)

    def check_before(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        time = memory["time"]
        check(time, headers, forced=gone_at() <= time)
        return add(key, value, timestamp, headers, first_open)

    def check_after(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        late = add(key, value, timestamp, headers, first_open)
        check(memory["time"], headers, forced=False)
        return late

    return check_after if emit.loses else check_before
