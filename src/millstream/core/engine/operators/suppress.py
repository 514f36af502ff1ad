"""Suppressed tables: updates wait in a buffer ordered by time, and are emitted when they are due.

The *buffer time* of a row is the end of its window, or the timestamp of its first buffered update. A later update replaces the buffered
one but does not prolong the wait. A row is emitted when the operator's stream time reaches its buffer time plus the wait, with the
timestamp and headers of the newest update. Rows that are due together are emitted in the order of buffer times, then serialised keys. The
operator's stream time is the largest timestamp of its input. It is kept over restarts, as in
``millstream.core.engine.operators.windows.window_operator``.

The old value of an emitted row is the value that was emitted before. The value before the newest update may never have been emitted.
"""

from __future__ import annotations

from typing import Any

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.idle import IdleClock
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.timeline import Timeline, timed_key
from millstream.core.model.errors import ProcessingError
from millstream.core.model.record import Headers
from millstream.core.model.suppressed import Held
from millstream.core.state.values import Values
from millstream.core.topology.window_nodes import Suppress


@compile_node.register
def _compile_suppress(node: Suppress, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    buffer, memory, wait = Buffer(node, compiled), runtime.memory(node.remembered_as), node.wait_ms
    final, limited = node.buffer_times is None, node.suppressed.limited
    put, take = buffer.put, buffer.take
    time: int = memory.get("time", -1)

    def suppress(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        nonlocal time
        try:
            put(key, new, old, timestamp, headers)
        except Exception as error:
            return runtime.on_error("process", name, error)
        if timestamp > time:
            memory["time"] = time = timestamp
        emit_until(time)
        while limited and buffer.over_limit():
            emit()
        return None

    def emit_until(now: int) -> None:
        while buffer.has_until(now - wait):
            emit()

    def emit() -> None:
        key, (new, old, timestamp, headers) = take()
        if new is not None or not final:
            child(key, new, old, timestamp, headers)

    def close(until: int, closes: tuple[str, ...] = node.closes) -> None:
        nonlocal time
        memory["time"] = time = max(time, until)
        for aggregation in closes:
            runtime.close_windows[aggregation](until - wait)
        emit_until(until)

    compiled.keep_stream_time(node, lambda to: close(to, ()))
    if (idle_ms := node.suppressed.close_idle_after_ms) is None:
        return suppress
    clock = runtime.idle_clocks[name] = IdleClock(memory, idle_ms, buffer.next_close, close)
    return clock.watching(suppress)


class Buffer:
    """The buffered rows of a suppressed table. Owned by the task.

    Attributes:
        has_until: Returns whether a row has a buffer time that is not later than a time.
    """

    def __init__(self, node: Suppress, compiled: Compiled) -> None:
        self._runtime = compiled.runtime
        stores = compiled.runtime.stores
        self._rows = Timeline(stores[node.buffer.name])
        self.has_until = self._rows.has_until
        self._times = None if node.buffer_times is None else stores[node.buffer_times.name]
        self._key = node.key
        self._checked = Values(node.buffer.name, node.value).checked
        self._limits = node.suppressed
        self._wait_ms = node.wait_ms
        self._memory = compiled.runtime.memory(node.remembered_as)
        self._size = node.buffer.value.serialize
        self._where = f"{node.name} of task {compiled.runtime.task_id}"
        self._count_up(stores[node.buffer.name])

    @property
    def next(self) -> int:
        """The first buffer time, ms since the epoch; NEVER if the buffer is empty."""
        return self._rows.next

    def next_close(self) -> int:
        return min(self.next + self._wait_ms, NEVER)

    def put(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        """Buffer an update; it replaces an earlier update of the row.

        Raises:
            SerdeError: If key or value do not fit the serdes of the table.
        """
        if new is not None:
            new = self._checked(new)
        entry_key = self._entry_key(key, timestamp)
        before: Held | None = self._rows.get(entry_key)
        update = Held(new, old if before is None else before.old, timestamp, headers)
        self._rows.put(entry_key, update, known=before is not None)
        if self._limits.limited:
            self._add(entry_key, update, 1)
            if before is not None:
                self._add(entry_key, before, -1)

    def take(self) -> tuple[Any, Held]:
        entry_key, update = self._rows.take()
        if self._times is not None:
            self._times.write(entry_key[8:], None)
        if self._limits.limited:
            self._add(entry_key, update, -1)
        return self._key.deserialize(entry_key[8:]), update

    def find(self, key: Any) -> Held | None:
        data = self._key.serialize(key)
        if self._times is None:
            update: Held | None = self._rows.get(timed_key(key.end, data))
            return update
        then = self._times.fetch(data)
        return None if then is None else self._rows.get(timed_key(then, data))

    def over_limit(self) -> bool:
        """Return True if the buffer exceeds a limit."""
        most, largest = self._limits.max_records, self._limits.max_bytes
        too_many = most is not None and self._memory["records"] > most
        over = too_many or (largest is not None and self._memory["bytes"] > largest)
        if over and self._limits.when_full == "fail":
            # Not an error of the record, so no policy of a processor upstream applies.
            self._runtime.stopped_by = ProcessingError(self._over_limit_message())
            raise self._runtime.stopped_by
        return over

    def _over_limit_message(self) -> str:
        records, limits = self._memory["records"], self._limits
        return (
            f"{self._where} buffers {records} rows, more than max_records={limits.max_records} or "
            f"max_bytes={limits.max_bytes} allow. Raise the limit, or use ms.Suppressed.until_time_limit(..., when_full='emit_early') if early results are acceptable"
        )

    def _entry_key(self, key: Any, timestamp: int) -> bytes:
        data = self._key.serialize(key)
        if self._times is None:
            return timed_key(key.end, data)
        then = self._times.fetch(data)
        if then is None:
            then = timestamp
            self._times.write(data, then)
        return timed_key(then, data)

    def _add(self, entry_key: bytes, update: Held, sign: int) -> None:
        self._memory["records"] += sign
        if self._limits.max_bytes is not None:
            self._memory["bytes"] += sign * (len(entry_key) + len(self._size(update)))

    def _count_up(self, rows: Any) -> None:
        """Count buffered rows and bytes for new limits, and remove counts that no limit needs."""
        counted = ["records"] if self._limits.limited else []
        if self._limits.max_bytes is not None:
            counted.append("bytes")
        for name in {"records", "bytes"}.difference(counted):
            self._memory.pop(name, None)
        if any(name not in self._memory for name in counted):
            self._memory.update(dict.fromkeys(counted, 0))
            for entry_key, update in rows.all():
                self._add(entry_key, update, 1)
