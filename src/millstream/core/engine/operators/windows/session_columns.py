"""Columnar form of the built-in aggregations by session.

The sessions that a record merges depend on the records before it, so the records of a batch are added one after the other, but not to the
store. The sessions of a key are read from the store at its first record in the batch, are changed in memory, and are written after the
batch. A session that a later record of the batch extends is never written.

The sessions of a key are in the order of their ends. Open sessions do not overlap, so the sessions that a record merges are neighbours.
They can overlap only if an edit has extended the grace period, or if a processor writes to the store; but a topology with processors has
no columnar forms.

Some records are processed one by one: a batch that may belong to sessions that the store has dropped, after an edit of the retention; and
the rest of a batch from the first record that fails, or whose key has overlapping sessions, or so many stored sessions in the time of the
batch that reading them would take longer.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice, repeat
from typing import Any, Final, NamedTuple

from millstream.core.engine.columns import Column, Columns, ColumnsCall, Form, call_per_row
from millstream.core.engine.compile import Compiled, columns_of, form_downstream
from millstream.core.engine.operators.aggregations import needs_values
from millstream.core.engine.operators.windows.session_windows import LATE, aggregation_of
from millstream.core.engine.operators.windows.window_columns import KeysInWindows, drop_incomplete
from millstream.core.model import serdes
from millstream.core.model.serdes import Serde
from millstream.core.state.values import fits_certainly
from millstream.core.topology.window_nodes import SessionAggregate

_BOUNDS: Final = struct.Struct(">qq")
_MOST_STORED: Final = 64
"""Stored sessions of a key that a batch reads at most."""
_Session = tuple[int, int, Any]
"""End, start and aggregate of a session."""


@columns_of.register
def _compile_in_columns(node: SessionAggregate, compiled: Compiled) -> Form | None:
    in_order_of_keys = node.store.value.immutable and not (node.store.by_time or node.store.strict)
    kept_back = node.emit.at_close or compiled.late(node) is not None or compiled.caches.of(node) is not None
    form = None if node.fold is None or kept_back or not in_order_of_keys else form_downstream(node, compiled)
    if form is None:
        return None
    return Form(_SessionAggregation(node, compiled, form.call).take, form.calls_functions)


class SessionKeys(KeysInWindows):
    __slots__ = ("_ends",)

    def __init__(self, keys: Column, serde: Serde[Any], starts: Sequence[int], ends: Sequence[int]) -> None:
        super().__init__(keys, serde, starts)
        self._ends = ends

    def window_ends(self) -> Iterable[int]:
        return self._ends

    def fits(self, serde: Serde[Any]) -> bool:
        return serdes.writes_windows_of(serde, self._key, sessions=True)

    def window_bytes(self) -> Iterable[bytes]:
        return map(_BOUNDS.pack, self._ends, self._starts)

    def only(self, kept: Sequence[object]) -> Column:
        starts, ends = compress(self._starts, kept), compress(self._ends, kept)
        return SessionKeys(self._keys.only(kept), self._key, list(starts), list(ends))

    def take(self, rows: Sequence[int]) -> Column:
        starts, ends = map(self._starts.__getitem__, rows), map(self._ends.__getitem__, rows)
        return SessionKeys(self._keys.take(rows), self._key, list(starts), list(ends))

    def part(self, start: int, end: int) -> Column:
        starts, ends = self._starts[start:end], self._ends[start:end]
        return SessionKeys(self._keys.part(start, end), self._key, starts, ends)


class _Results(NamedTuple):
    """Results, as parallel lists because millions of tuples are slow.

    Attributes:
        records: The numbers of the records.
        aggregates: The aggregates of the sessions; None if the record merged the session into another one.
    """

    records: list[int]
    starts: list[int]
    ends: list[int]
    aggregates: list[Any]


class _SessionAggregation:
    """The columnar form of one aggregation. Owned by the task."""

    def __init__(self, node: SessionAggregate, compiled: Compiled, child: ColumnsCall) -> None:
        assert node.fold is not None
        self._advance: Callable[[int], None] = compiled.shared[node.name]
        self._runtime, self._row, self._child = compiled.runtime, compiled.call(node), child
        self._memory = compiled.runtime.memory(node.remembered_as)
        self._store, self._key = compiled.runtime.stores[node.store.name], node.store.key
        self._accepts, self._fits = frozenset(node.store.value.accepts), fits_certainly(node.store.value)
        self._aggregated, self._with_values = aggregation_of(node), needs_values(node.fold)
        self._gap, self._wait = node.windows.gap_ms, node.windows.gap_ms + node.windows.grace_ms
        self._retention = node.store.retention_ms

    def take(self, columns: Columns) -> None:
        columns = drop_incomplete(columns, self._runtime, with_values=self._with_values)
        try:
            keys: Any = columns.keys.serialised(self._key)
            values = columns.values.objects() if self._with_values else repeat(None, len(keys))
        except Exception:  # then process record by record, to find the bad ones
            return call_per_row(columns, self._row, self._runtime)
        if not keys:
            return None
        time = self._memory.get("time", -1)
        if self._retention < self._wait or self._store.oldest > max(time - self._wait, 0) + 1:
            return call_per_row(columns, self._row, self._runtime)
        first = max(min(columns.timestamps) - self._gap, time - self._wait)
        batch = _Batch(self._store, first, max(columns.timestamps) + self._gap)
        results = _Results([], [], [], [])
        done = self._merge(keys, values, columns.timestamps, batch, results)
        batch.write()
        self._advance(max(columns.timestamps[:done], default=-1))
        self._forward(columns, results)
        if done < len(keys):
            call_per_row(columns.part(done, len(keys)), self._row, self._runtime)
        return None

    def _merge(
        self, keys: Sequence[bytes], values: Any, timestamps: list[int], batch: _Batch, results: _Results
    ) -> int:
        """Add records to their sessions. Return the number of added records, which ends before the first one that fails."""
        time, oldest = self._memory.get("time", -1), self._store.oldest
        gap, wait, retention, accepts = self._gap, self._wait, self._retention, self._accepts
        sessions_of, aggregated, fits = batch.sessions, self._aggregated, self._fits
        appends: list[Callable[[Any], None]] = [column.append for column in results]
        to_record, to_start, to_end, to_aggregate = appends
        late = number = 0
        try:
            for number, (key, value, timestamp) in enumerate(zip(keys, values, timestamps)):
                if timestamp > time:
                    time = timestamp
                sessions = sessions_of[key]
                low = max(timestamp - gap, time - wait, oldest)
                first = bisect_left(sessions, (low,))
                start = end = timestamp
                merged = _neighbours(sessions, first, timestamp + gap) if first < len(sessions) else []
                if merged:
                    start, end = min(timestamp, merged[0][1]), max(timestamp, merged[-1][0])
                if end < time - wait:
                    late += 1
                    continue
                new = aggregated(None, value, merged)
                if type(new) not in accepts or not fits(new):
                    return number
                sessions[first : first + len(merged)] = [(end, start, new)]
                if end > batch.newest:
                    batch.newest, oldest = end, max(oldest, end - retention + 1)
                if start < end:
                    for old_end, old_start, _ in merged:
                        to_record(number), to_start(old_start), to_end(old_end), to_aggregate(None)
                to_record(number), to_start(start), to_end(end), to_aggregate(new)
        except Exception:  # of the value, or of the store; the record fails again by itself
            return number
        finally:
            if late:
                self._runtime.drop(LATE, late)
        return len(keys)

    def _forward(self, columns: Columns, results: _Results) -> None:
        rows, starts, ends, aggregates = results
        if not rows:
            return
        headers = columns.headers and list(map(columns.headers.__getitem__, rows))
        positions = list(map(columns.positions.__getitem__, rows))
        keys = SessionKeys(columns.keys.take(rows), self._key, starts, ends)
        self._child(Columns(keys, Column(known=aggregates), ends, headers, positions))


def _neighbours(sessions: list[_Session], first: int, latest_start: int) -> list[_Session]:
    behind, size = first, len(sessions)
    while behind < size and sessions[behind][1] <= latest_start:
        behind += 1
    return sessions[first:behind]


class _Batch:
    """The sessions of the keys of a batch, in memory.

    Attributes:
        sessions: Per serialised key, its sessions in the order of their ends. Read from the store when a key is first looked up.
        newest: The store's time: the largest end of a session so far, ms since the epoch.
    """

    def __init__(self, store: Any, first: int, latest_start: int) -> None:
        self._store = store
        self.newest: int = store.time
        self.sessions = _Sessions(lambda key: store.find(key, first, latest_start))

    def write(self) -> None:
        stored, changes = self.sessions.stored, list[tuple[bytes, int, int, Any]]()
        for key, sessions in self.sessions.items():
            before = stored.get(key)
            if before is None:
                changes.extend([(key, start, end, aggregate) for end, start, aggregate in sessions])
                continue
            kept = set(map(id, before)).intersection(map(id, sessions))
            bounds = {(start, end) for end, start, _ in sessions}
            new = [session for session in sessions if id(session) not in kept]
            changes.extend([(key, start, end, aggregate) for end, start, aggregate in new])
            changes.extend(
                [(key, start, end, None) for end, start, _ in before if (start, end) not in bounds]
            )
        self._store.write_batch(changes, self.newest)


class _Sessions(dict[bytes, list[_Session]]):
    """Sessions by serialised key.

    Attributes:
        stored: The sessions that were read from the store; keys without sessions are missing.
    """

    __slots__ = ("_read", "stored")

    def __init__(self, read: Callable[[bytes], Iterator[tuple[int, int, Any]]]) -> None:
        self._read = read
        self.stored: dict[bytes, list[_Session]] = {}

    def __missing__(self, key: bytes) -> list[_Session]:
        read = islice(self._read(key), _MOST_STORED + 1)
        found = [(end, start, aggregate) for start, end, aggregate in read]
        starts = [start for _, start, _ in found]
        if len(found) > _MOST_STORED or sorted(starts) != starts:
            raise ValueError("these sessions are merged record by record")
        if found:
            self.stored[key] = found
        self[key] = sessions = found[:]
        return sessions
