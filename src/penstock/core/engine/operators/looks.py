"""Looks: when an aggregation that gives results at the close of windows looks for the closed ones.

Nothing is needed by default: the aggregation knows from two numbers whether a record closes windows, and gives them before
it adds the record. An operator that looks by the wall clock, or as late as Kafka Streams does, is wrapped:

* with an *interval*, a record looks only if so much wall clock has passed since the last look, whether that found something
  or not. The wall clock is that of the micro-batches, and the time of the next look is remembered with the task, so a
  micro-batch that is repeated gives the same again. A look is not put off when entries that it would read are about to be
  dropped from their store.
* *losing* what expires, it looks behind the record instead of before it, and gives only what reads of the store can then
  still see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.engine.compile import Call
from penstock.core.engine.runtime import Runtime
from penstock.core.model.record import Headers
from penstock.core.model.windows import EmitStrategy


def looking(
    runtime: Runtime,
    remembered_as: str,
    emit: EmitStrategy,
    aggregate: Call,
    close: Callable[[int, Headers], None],
    gone_at: Callable[[], int],
    *,
    takes_null_values: bool = True,
) -> Call:
    """Give the function of an aggregation as one that looks by the wall clock, or late.

    Args:
        runtime: The task.
        remembered_as: Where the aggregation's memory is, with its time under ``time``.
        emit: When to look.
        aggregate: The function, which closes nothing itself.
        close: Gives the results of what has closed at a stream time.
        gone_at: Gives the stream time at which the first entry is dropped that was not given yet.
        takes_null_values: Whether records without a value let time advance.
    """
    memory, every = runtime.memory(remembered_as), emit.every_ms

    def look(time: int, headers: Headers, *, forced: bool) -> None:
        now = runtime.now_ms
        if now >= memory.get("next_look", 0):
            memory["next_look"] = now + every
            close(time, headers)
        elif forced:
            close(time, headers)

    def before(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None and (takes_null_values or value is not None):
            time = max(memory.get("time", -1), timestamp)
            look(time, headers, forced=gone_at() <= time)
        aggregate(key, value, timestamp, headers)

    def behind(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        aggregate(key, value, timestamp, headers)
        if key is not None and (takes_null_values or value is not None):
            look(memory["time"], headers, forced=False)

    return behind if emit.loses else before
