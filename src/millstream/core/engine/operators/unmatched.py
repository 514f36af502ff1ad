"""Unmatched records: records of a left or outer join of two streams that have not found a partner yet.

They wait in a key-value store of the join until their window closes, in the order in which their results are emitted:

    key:   time (8) | side: 00 right, 01 left | serialised key
    value: (length (4) | serialised value) ...

A window closes when the stream time of the join has passed it. The records whose windows have closed are therefore the first ones in the
store. The join remembers a lower bound of their timestamps, so that most records need no scan, and a scan reads little more than it
emits.

If ``JoinTimes.final`` is False, unmatched results are emitted exactly as by Kafka Streams, whose scans skip more results than necessary:

* The results that a side may emit depend on the side whose record advanced stream time.
* A scan that leaves records in the store remembers the timestamp of the last record that it read, which may not be the first remaining
  one.
* An empty store counts as due, because the length of the window is added to the largest long and overflows. The scan finds nothing, but
  the next scan must wait for the interval. There is no overflow if a window closes with its own record, because its length is 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.runtime import Runtime
from millstream.core.model.serdes import never_null
from millstream.core.topology.join_nodes import StreamJoin
from millstream.core.topology.stores import StoreSpec

_KEY: Final = struct.Struct(">QB")
_TIME: Final = struct.Struct(">Q")
_LENGTH: Final = struct.Struct(">I")

Alone = tuple[Any, Any, int]
"""Key, result and timestamp of an unmatched record."""


class Unmatched:
    """The unmatched records of a join, as used by one side. Owned by the task."""

    def __init__(self, node: StreamJoin, spec: StoreSpec, runtime: Runtime) -> None:
        times = node.times
        self._store = runtime.stores[spec.name]
        self._memory = runtime.memory(node.remembered_as)
        self._runtime = runtime
        self._joiner = node.joiner
        self._left = node.left
        self._specs = (node.other, node.mine) if node.left else (node.mine, node.other)
        self._key_bytes, self._value_bytes = node.mine.key.serialize, never_null(node.mine.value).serialize
        self._other_key = node.other.key.serialize
        self._closes = (times.closes(left=False), times.closes(left=True))
        self._final, self._interval = times.final, times.interval
        both = node.kind == "outer"
        self._soonest = min(self._closes) if both else times.closes(left=True)
        if not times.final:
            self._soonest = times.closes(left=node.left)
        self._empty_is_due = not times.final and times.interval > 0 and self._soonest > 0

    def add(self, key: Any, value: Any, timestamp: int) -> None:
        entry_key = _KEY.pack(timestamp, self._left) + self._key_bytes(key)
        data = self._value_bytes(value)
        self._store.put(entry_key, (self._store.get(entry_key) or b"") + _LENGTH.pack(len(data)) + data)
        self._memory["first"] = min(self._memory.get("first", NEVER), timestamp)

    def matched(self, key: Any, timestamp: int) -> None:
        """Remove the records of the other side that a record has matched."""
        entry_key = _KEY.pack(timestamp, not self._left) + self._other_key(key)
        if self._store.get(entry_key) is not None:
            self._store.put(entry_key, None)

    def due(self, time: int) -> int:
        """Return the stream time after which :meth:`close` may remove records; NEVER if there are no unmatched records.

        Args:
            time: Stream time of the join, ms. If records may be due at this time, the result is -1.
        """
        first = self._memory.get("first", NEVER)
        if first == NEVER:
            return NEVER
        due: int = first + self._soonest
        return -1 if time > due else due

    def close(self, time: int, results: list[Alone]) -> None:
        """Remove the records whose windows have closed, and append their results.

        Args:
            time: Stream time of the join, ms.

        Raises:
            Exception: If a record fails. It is removed, and the records after it remain.
        """
        first = self._memory.get("first", NEVER)
        due = self._empty_is_due if first == NEVER else first < time - self._soonest
        if not due or not self._may_look():
            return
        if self._final:
            self._close(time, results)
        else:
            self._close_as_kafka_streams(time, results)

    def _may_look(self) -> bool:
        if not self._interval:
            return True
        now = self._runtime.now_ms
        # A time beyond the interval is from before the clock moved back.
        if now < self._memory.get("next", 0) <= now + self._interval:
            return False
        self._memory["next"] = now + self._interval
        return True

    def _close(self, time: int, results: list[Alone]) -> None:
        end = time - self._soonest
        entries = list(self._store.range(_TIME.pack(self._memory["first"]), _TIME.pack(end)))
        first = end
        for entry_key, data in entries:
            timestamp, left = _KEY.unpack_from(entry_key)
            if timestamp + self._closes[left] >= time:
                first = min(first, timestamp)
            else:
                results.extend(self._take_results(entry_key, data))
        self._memory["first"] = first

    def _close_as_kafka_streams(self, time: int, results: list[Alone]) -> None:
        self._memory["first"] = NEVER
        open_sides: set[int] = set()
        for entry_key, data in list(self._store.all()):
            timestamp, left = _KEY.unpack_from(entry_key)
            self._memory["first"] = timestamp
            if len(open_sides) == 2:
                break
            if timestamp + self._closes[left] >= time:
                open_sides.add(left)
            else:
                results.extend(self._take_results(entry_key, data))

    def _take_results(self, entry_key: bytes, data: bytes) -> Iterator[Alone]:
        timestamp, left = _KEY.unpack_from(entry_key)
        spec = self._specs[left]
        key = spec.key.deserialize(entry_key[_KEY.size :])
        end = 0
        try:
            while end < len(data):
                start = end + _LENGTH.size
                end = start + _LENGTH.unpack_from(data, end)[0]
                value = spec.value.deserialize(data[start:end])
                result = self._joiner(key, value, None) if left else self._joiner(key, None, value)
                yield key, result, timestamp
        finally:
            self._store.put(entry_key, data[end:] or None)
