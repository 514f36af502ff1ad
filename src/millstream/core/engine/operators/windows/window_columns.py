"""Columnar form of aggregations by tumbling and hopping windows.

A batch becomes *pairs* of a record and one of its windows, as parallel lists: one pair per record for tumbling windows, several for
hopping windows. Pairs whose window has closed are dropped. The other pairs are folded onto the entries of the store
(``millstream.core.engine.operators.aggregations``). Keys are looked up per window, so that the store key of an entry is built once per
batch.

Events that must happen between two records *cut* the batch: windows that close and emit results, and late records, if the topology uses
them. They are found in advance, from the operator's time at each record. The records between two cuts are processed as one part. The order
of events is the same as record by record. A batch with too many cuts is processed record by record.

Sliding windows have no columnar form, because the windows that a record touches depend on the records before it. The columnar form of
sessions is in ``millstream.core.engine.operators.windows.session_columns``.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, compress, count, islice, repeat
from operator import add, getitem, gt, itemgetter, not_
from typing import Any, Final

from millstream.core.engine.columns import Column, Columns, ColumnsCall, Form, call_per_row, without_nulls
from millstream.core.engine.compile import Compiled, columns_of, form_downstream
from millstream.core.engine.operators.aggregations import INCOMPLETE, Before, Entry, folding, needs_values
from millstream.core.engine.operators.windows.time_windows import Shared
from millstream.core.engine.operators.windows.window_operator import LATE, NO_KEY
from millstream.core.engine.runtime import Runtime
from millstream.core.model import serdes
from millstream.core.model.serdes import Serde
from millstream.core.model.windowed import Windowed, window_end
from millstream.core.state.keyvalue import Overlay
from millstream.core.topology import nodes as n
from millstream.core.topology.folds import Fold
from millstream.core.topology.nodes import Late
from millstream.core.topology.window_nodes import WindowedAggregate

_START: Final = struct.Struct(">q")
_APART: Final = 32
"""With fewer records between two cuts, on average, processing record by record is as fast."""
_windowed: Any = tuple.__new__


@columns_of.register
def _compile_in_columns(node: WindowedAggregate, compiled: Compiled) -> Form | None:
    if node.fold is None or node.shared or (node.emit.at_close and not node.emit.at_once):
        return None
    late, calls_functions = compiled.late(node), not _without_functions(node, compiled)
    if node.emit.at_close:
        return Form(_Aggregation(node, node.fold, compiled, None).take, calls_functions)
    form = form_downstream(node, compiled)
    if form is None:
        return None
    calls_functions = form.calls_functions or (late is not None and calls_functions)
    return Form(_Aggregation(node, node.fold, compiled, form.call).take, calls_functions)


def _without_functions(node: n.Node, compiled: Compiled) -> bool:
    """Return True if no node downstream of a node calls a function of the user."""
    return all(
        (isinstance(child, n.Sink) and isinstance(child.topic, str) and child.partitioner is None)
        or (isinstance(child, (n.ToStream, n.Pass, Late)) and _without_functions(child, compiled))
        for child in compiled.children_of(node)
    )


class KeysInWindows(Column, ABC):
    """Keys in windows, serialised from the bytes of the keys. A subclass knows the ends and the format of the windows."""

    __slots__ = ("_key", "_keys", "_starts")

    def __init__(self, keys: Column, serde: Serde[Any], starts: Sequence[int]) -> None:
        super().__init__()
        self._keys, self._key, self._starts = keys, serde, starts

    @abstractmethod
    def window_ends(self) -> Iterable[int]: ...

    @abstractmethod
    def fits(self, serde: Serde[Any]) -> bool:
        """Return whether a serde appends the bytes of these windows to the bytes of the keys."""

    @abstractmethod
    def window_bytes(self) -> Iterable[bytes]: ...

    def objects(self) -> list[Any]:
        if self.known is None:
            fields = zip(self._keys.objects(), self._starts, self.window_ends())
            self.known = list(map(_windowed, repeat(Windowed), fields))
        return self.known

    def serialised(self, serde: Serde[Any]) -> list[bytes | None]:
        if not self.fits(serde):
            return [*map(serde.serialize, self.objects())]
        keys: Any = self._keys.serialised(self._key)
        return list(map(add, keys, self.window_bytes()))

    def without_windows(self, serde: Serde[Any], window_bytes: int) -> list[bytes | None]:
        if not self.fits(serde):
            return super().without_windows(serde, window_bytes)
        return self._keys.serialised(self._key)

    def present(self) -> list[bool]:
        return [True] * len(self._starts)

    def any_null(self) -> bool:
        return False


class WindowedKeys(KeysInWindows):
    """Keys in windows of a fixed size."""

    __slots__ = ("_size",)

    def __init__(self, keys: Column, serde: Serde[Any], starts: Sequence[int], size: int) -> None:
        super().__init__(keys, serde, starts)
        self._size = size

    def window_ends(self) -> Iterable[int]:
        return map(window_end, self._starts, repeat(self._size))

    def fits(self, serde: Serde[Any]) -> bool:
        return serdes.writes_windows_of(serde, self._key)

    def window_bytes(self) -> Iterable[bytes]:
        packed = {start: _START.pack(start) for start in set(self._starts)}
        return map(packed.__getitem__, self._starts)

    def only(self, kept: Sequence[object]) -> Column:
        return WindowedKeys(self._keys.only(kept), self._key, list(compress(self._starts, kept)), self._size)

    def take(self, rows: Sequence[int]) -> Column:
        starts = list(map(self._starts.__getitem__, rows))
        return WindowedKeys(self._keys.take(rows), self._key, starts, self._size)

    def part(self, start: int, end: int) -> Column:
        return WindowedKeys(self._keys.part(start, end), self._key, self._starts[start:end], self._size)


def drop_incomplete(columns: Columns, runtime: Runtime, *, with_values: bool) -> Columns:
    """Drop records without a key and, if values are needed, without a value."""
    columns = without_nulls(columns, runtime, NO_KEY, values=False)
    return without_nulls(columns, runtime, INCOMPLETE, keys=False, values=with_values)


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a record and a window, as parallel lists.

    Attributes:
        records: Per pair, the number of its record, ascending.
        starts: Per pair, the start of its window.
        left_out: By reason, the record numbers of dropped pairs, ascending.
    """

    records: Sequence[int]
    starts: Sequence[int]
    left_out: Mapping[str, Sequence[int]]

    def only(self, kept: Sequence[bool], reason: str) -> _Pairs:
        if all(kept):
            return self
        out = list(compress(self.records, map(not_, kept)))
        left_out = {**self.left_out, reason: out}
        return _Pairs(list(compress(self.records, kept)), list(compress(self.starts, kept)), left_out)


class _Aggregation:
    """The columnar form of one aggregation. Owned by the task."""

    def __init__(
        self, node: WindowedAggregate, fold: Fold, compiled: Compiled, child: ColumnsCall | None
    ) -> None:
        shared: Shared = compiled.shared[node.name]
        self._runtime, self._shared, self._child = compiled.runtime, shared, child
        self._row, self._late_child = compiled.call(node), compiled.late(node)
        self._memory = compiled.runtime.memory(node.remembered_as)
        self._store, self._key = compiled.runtime.stores[node.store.name], node.store.key
        self._fold, self._with_values = folding(fold, node.store.value), needs_values(fold)
        self._windows, self._wait = node.windows, node.windows.size_ms + node.windows.grace_ms

    def take(self, columns: Columns) -> None:
        if self._shared.clock is not None and columns.timestamps:
            self._shared.clock.note_input()
        columns = drop_incomplete(columns, self._runtime, with_values=self._with_values)
        try:
            columns.keys.serialised(self._key)
        except Exception:  # then process record by record, to find the bad ones
            call_per_row(columns, self._row, self._runtime)
        else:
            if columns.timestamps:
                self._take(columns)

    def _take(self, columns: Columns) -> None:
        times, late = self._times(columns.timestamps)
        cuts = [] if times is None else self._cuts(columns, times)
        if len(cuts) * _APART > len(columns.timestamps):
            return call_per_row(columns, self._row, self._runtime)
        begin, late_times = 0, times if late else None
        for end, happen in cuts:
            if not self._add(columns, late_times, begin, end):
                return None
            happen()
            begin = end
        if self._add(columns, late_times, begin, len(columns.timestamps)):
            self._shared.advance(max(columns.timestamps))
        return None

    def _times(self, timestamps: list[int]) -> tuple[list[int] | None, bool]:
        """Return the operator's time at each record, and True if a record may be late.

        The times are None if nothing depends on them: no window closes and no record is late. If timestamps ascend, a record can be late
        only for windows that closed before the batch.
        """
        time, newest = self._memory.get("time", -1), max(timestamps)
        in_order = timestamps[0] >= time and sorted(timestamps) == timestamps
        closed_at = self._windows.starts(min(timestamps))[0] + self._wait
        late = closed_at <= (time if in_order else max(time, newest))
        closing = self._shared.closing
        if not late and (closing is None or newest < closing.due()):
            return None, False
        if in_order:
            return timestamps, late
        return list(islice(accumulate(chain((time,), timestamps), max), 1, None)), late

    def _cuts(self, columns: Columns, times: list[int]) -> list[tuple[int, Callable[[], None]]]:
        """Return the events between records, each with the number of records before it.

        If two events are at the same position, a late record is forwarded first, because it precedes the record that closes windows.
        """
        late = [
            (number + 1, partial(self._forward_late, columns, number))
            for number in self._late(columns, times)
        ]
        closed = [
            (number, partial(self._close, columns, number, times[number])) for number in self._closing(times)
        ]
        return sorted([*late, *closed], key=itemgetter(0))

    def _late(self, columns: Columns, times: list[int]) -> list[int]:
        """Return the numbers of the records that are late for a window, if the topology uses late records."""
        if self._late_child is None:
            return []
        starts, wait = self._windows.starts, self._wait
        rows = enumerate(zip(columns.timestamps, times))
        return [number for number, (timestamp, time) in rows if starts(timestamp)[0] + wait <= time]

    def _closing(self, times: list[int]) -> list[int]:
        """Return the numbers of the records before which windows close, if results are emitted at close."""
        if self._shared.closing is None:
            return []
        numbers, number, due = list[int](), 0, self._shared.closing.due()
        while (number := bisect_left(times, due, number)) < len(times):
            numbers.append(number)
            due = self._windows.last_closed(times[number]) + self._windows.advance_ms + self._wait
        return numbers

    def _close(self, columns: Columns, number: int, time: int) -> None:
        assert self._shared.closing is not None
        self._runtime.locate(columns.positions[number])
        self._shared.closing.close(time, columns.headers[number] if columns.headers else ())

    def _forward_late(self, columns: Columns, number: int) -> None:
        assert self._late_child is not None
        call_per_row(columns.part(number, number + 1), self._late_child, self._runtime)

    def _add(self, columns: Columns, times: list[int] | None, begin: int, end: int) -> bool:
        """Add the records between two cuts to their windows.

        Returns:
            True if all records were added. If a record fails, this record and all later ones are processed record by record.
        """
        if begin == end:
            return True
        whole = begin == 0 and end == len(columns.timestamps)
        part = columns if whole else columns.part(begin, end)
        done = self._fold_part(part, self._pairs(part.timestamps, times and times[begin:end]))
        if done == end - begin:
            return True
        self._shared.advance(max(columns.timestamps[: begin + done], default=-1))
        call_per_row(columns.part(begin + done, len(columns.timestamps)), self._row, self._runtime)
        return False

    def _pairs(self, timestamps: list[int], times: list[int] | None) -> _Pairs:
        size, advance = self._windows.size_ms, self._windows.advance_ms
        if size == advance:
            pairs = _Pairs(
                range(len(timestamps)), [timestamp - timestamp % size for timestamp in timestamps], {}
            )
        else:
            starts = self._starts(timestamps)
            records = chain.from_iterable(map(repeat, range(len(starts)), map(len, starts)))
            pairs = _Pairs(list(records), list(chain.from_iterable(starts)), {})
        if times is None:
            return pairs
        closed = list(map((-self._wait).__add__, times))
        kept = list(map(gt, pairs.starts, map(closed.__getitem__, pairs.records)))
        return pairs.only(kept, LATE)

    def _starts(self, timestamps: list[int]) -> list[range]:
        size, advance = self._windows.size_ms, self._windows.advance_ms
        width = advance if size % advance == 0 else 1
        buckets = [timestamp // width for timestamp in timestamps]
        starts = {bucket: self._windows.starts(bucket * width) for bucket in set(buckets)}
        return list(map(starts.__getitem__, buckets))

    def _fold_part(self, part: Columns, pairs: _Pairs) -> int:
        """Fold pairs onto their entries, and forward the results. Return the number of folded records."""
        rows = {start: self._store.rows_to_write(start) for start in dict.fromkeys(pairs.starts)}
        if None in rows.values():
            pairs = pairs.only([rows[start] is not None for start in pairs.starts], "expired window")
        batch = part if not pairs.left_out and isinstance(pairs.records, range) else part.take(pairs.records)
        keys: Any = batch.keys.serialised(self._key)
        try:
            values = batch.values.objects() if self._with_values else ()
        except Exception:  # then process record by record, to find the bad ones
            return 0
        entries = _Entries(self._store, rows, keys, pairs.starts)
        folded = self._fold(entries.read(), values, batch.timestamps, None)
        done, size = len(folded.results), len(part.timestamps)
        if done < len(keys):
            size = pairs.records[done]
            done = bisect_left(pairs.records, size)
            folded = folded.head(done)
        if done:
            self._store.observe(max(pairs.starts[:done]))
            entries.write(folded.entries)
        for reason, records in pairs.left_out.items():
            self._runtime.drop(reason, bisect_left(records, size))
        if self._child is not None and done:
            whole = done == len(keys)
            results = batch if whole else batch.part(0, done)
            starts = pairs.starts if whole else pairs.starts[:done]
            in_windows = WindowedKeys(results.keys, self._key, starts, self._windows.size_ms)
            self._child(results.with_keys(in_windows).with_values(folded.results, folded.timestamps))
        return size


class _Entries:
    """The entries of pairs, numbered in the order of their first pairs. Lives as long as the part.

    Args:
        rows: Per start of a window, the rows that contain its entries; None if the window has expired.
        keys: Per pair, the serialised key.
        starts: Per pair, the start of the window.
    """

    def __init__(
        self, store: Any, rows: Mapping[int, Overlay | None], keys: Sequence[bytes], starts: Sequence[int]
    ) -> None:
        number = count().__next__
        windows: dict[int, dict[bytes, int]] = {start: defaultdict(number) for start in rows}
        self._numbers = list(map(getitem, map(windows.__getitem__, starts), keys))
        self._size = number()
        slots: dict[int, tuple[Any, dict[int, bytes]]] = {}
        for start, window in windows.items():
            if not window:  # the window has expired
                continue
            _, stored = slots.setdefault(id(rows[start]), (rows[start], {}))
            stored.update(zip(window.values(), store.many_stored(list(window), start)))
        self._slots = [
            (slot, list(map(stored.__getitem__, numbers := sorted(stored))), numbers)
            for slot, stored in slots.values()
        ]

    def read(self) -> Before:
        entries: dict[int, Entry | None] = {}
        readable = self._size
        for slot, stored_keys, numbers in self._slots:
            read: list[Entry | None] = []
            with suppress(Exception):  # the pairs before the first unreadable entry are folded
                read.extend(map(slot.get, stored_keys))
            if len(read) < len(numbers):
                readable = min(readable, numbers[len(read)])
            entries.update(zip(numbers, read))
        return Before(self._numbers, list(map(entries.__getitem__, range(readable))), self._size)

    def write(self, entries: Sequence[Entry]) -> None:
        """Write the first entries, in the order of their numbers, because the order is visible in a changelog topic."""
        for slot, stored_keys, numbers in self._slots:
            written = map(entries.__getitem__, numbers[: bisect_left(numbers, len(entries))])
            deque(map(slot.put_fitting, stored_keys, written), maxlen=0)
