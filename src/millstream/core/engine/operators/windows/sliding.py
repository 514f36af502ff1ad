"""Aggregations by sliding window: a record changes the windows around it, and may create new ones.

With a difference of d, each distinct timestamp ``t`` of a key's records defines two windows:

    [t - d, t]            the *left* window of t
    [t + 1, t + 1 + d]    the *right* window of t, if it contains a record

Every set of records within d of each other thus has a window, and no two windows contain the same records. A new record is added to the
existing windows that contain its timestamp. Three windows are created if they do not exist: the right window of the previous record, and
the record's own left and right windows. The left window begins with the aggregate of the window before it, if that contains the same
other records; the right window with the aggregate of the first window that contains its records.

*Early* records, with timestamps before d, share the left window ``[0, d]``, because no window begins before the epoch. As in Kafka Streams,
they do not check for closed windows, and neither do late records. This matters only if there is an interval between two checks.

Two pure functions find the windows that a record touches, in the order of Kafka Streams (``KStreamSlidingWindowAggregate``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.operators.aggregations import INCOMPLETE
from millstream.core.engine.operators.windows.window_operator import (
    LATE,
    Add,
    OpenInTimeline,
    Windower,
    aggregation,
)
from millstream.core.engine.timeline import time_of, timed_key
from millstream.core.model.record import Headers
from millstream.core.model.windowed import Windowed, window_end
from millstream.core.state.values import copier
from millstream.core.topology.window_nodes import SlidingAggregate

Entry = tuple[Any, int]
"""An aggregate, and the largest timestamp of its records."""

_NONE: Final = -1
"""The timestamp of a record that does not exist; less than all others."""


class Touch(NamedTuple):
    """A window that a record changes or creates.

    Attributes:
        so_far: The aggregate without the record; None to begin with the initializer.
        exists: True if the window already exists.
        adds: True if the window contains the record; False for the record's right window.
    """

    start: int
    so_far: Entry | None
    exists: bool = False
    adds: bool = True


def touched(windows: Iterable[tuple[int, Entry]], time: int, difference: int) -> list[Touch]:
    """Return the windows that a record touches.

    Args:
        windows: Start and entry of the key's windows with starts from ``time - 2 * difference`` to ``time + 1``, latest first.
        time: The record's timestamp, ms since the epoch, at least the difference.
    """
    touches: list[Touch] = []
    starts: set[int] = set()
    before: Entry | None = None
    behind: Entry | None = None
    previous = _NONE
    left = right = False
    for start, entry in windows:
        starts.add(start)
        if start > time:
            right = True
            continue
        if entry[1] < time:
            previous = max(previous, entry[1])
        if start + difference < time:
            before = entry
            break
        touches.append(Touch(start, entry, exists=True))
        if start + difference > time:
            behind = behind or entry
        elif entry[1] < time:
            left = True
        else:
            return touches
    if previous != _NONE and previous + 1 not in starts and previous + 1 + difference >= time:
        touches.append(Touch(previous + 1, None))
    if not left:
        holds = before is not None and before[1] >= time - difference
        touches.append(Touch(time - difference, (before[0], time) if before is not None and holds else None))
    if not right and behind is not None and behind[1] > time:
        touches.append(Touch(time + 1, behind, adds=False))
    return touches


def touched_early(windows: Iterable[tuple[int, Entry]], time: int) -> list[Touch]:
    """Return the windows that an early record touches.

    Args:
        windows: Start and entry of the key's windows with starts up to ``time + 1``, earliest first.
        time: The record's timestamp, ms since the epoch, less than the difference.
    """
    touches: list[Touch] = []
    starts: set[int] = set()
    common: Entry | None = None
    behind: Entry | None = None
    previous = _NONE
    for start, entry in windows:
        starts.add(start)
        if start > time:
            continue
        if entry[1] < time:
            previous = max(previous, entry[1])
        if start == 0:
            common = entry
        else:
            behind = entry
            touches.append(Touch(start, entry, exists=True))
    behind = behind or common
    if time + 1 not in starts and behind is not None and behind[1] > time:
        touches.append(Touch(time + 1, behind, adds=False))
    if previous != _NONE and previous + 1 not in starts:
        touches.append(Touch(previous + 1, None))
    touches.append(Touch(0, common, exists=common is not None))
    return touches


@compile_node.register
def _compile(node: SlidingAggregate, compiled: Compiled) -> Call:
    store, grace = compiled.runtime.stores[node.store.name], node.windows.grace_ms
    difference = node.windows.difference_ms
    open_ms = difference + grace
    windows = None if node.open is None else _OpenSlidingWindows(node, compiled, open_ms)
    windower = Windower(
        _adding(node, compiled, windows),
        open_ms,
        windows,
        node.emit,
        grace + 1,
        checks_from_ms=difference,
        no_key=INCOMPLETE,
        observe=lambda time: store.observe(time - difference),
    )
    return aggregation(node, compiled, windower).call


def _adding(node: SlidingAggregate, compiled: Compiled, open_ones: _OpenSlidingWindows | None) -> Add:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store, key_bytes = runtime.stores[node.store.name], node.store.key.serialize
    difference, added = node.windows.difference_ms, _aggregation(node)

    def add(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        if timestamp < first_open:
            runtime.drop(LATE)
            return True
        written: list[tuple[Touch, Any, int]] = []
        failed = False
        try:
            touches = _fetch_touches(store, key, timestamp, difference)
            in_time = [touch for touch in touches if touch.start >= first_open]
            changes = [(touch, *added(key, value, timestamp, touch)) for touch in in_time]
            for change in changes:
                touch, new, then = change
                store.put(key, None if new is None else (new, then), touch.start)
                if open_ones is not None:
                    open_ones.change(key_bytes(key), touch, exists=new is not None)
                written.append(change)
        except Exception as error:
            failed = True
            runtime.on_error("process", name, error)
        if open_ones is None:
            for touch, new, then in written:
                old = touch.so_far[0] if touch.exists and touch.so_far is not None else None
                window = Windowed(key, touch.start, window_end(touch.start, difference))
                child(window, new, old, then, headers)
        if failed:
            return False
        late = len(touches) - len(in_time)
        if late:
            runtime.drop(LATE, late)
        return bool(late)

    return add


def _fetch_touches(store: Any, key: Any, timestamp: int, difference: int) -> list[Touch]:
    if timestamp < difference:
        return touched_early(store.fetch(key, 0, timestamp + 1), timestamp)
    first = max(0, timestamp - 2 * difference)
    return touched(store.reverse_fetch(key, first, timestamp + 1), timestamp, difference)


def _aggregation(node: SlidingAggregate) -> Callable[[Any, Any, int, Touch], Entry]:
    """Return a function that computes the entry of a window that a record touches.

    Several windows may begin with one aggregate, which the aggregator may change in place, so each gets a copy.
    """
    initializer, aggregator, own = node.initializer, node.aggregator, copier(node.store.value)

    def added(key: Any, value: Any, timestamp: int, touch: Touch) -> Entry:
        so_far = touch.so_far
        if so_far is not None:
            if not touch.adds:
                return so_far
            return aggregator(key, value, own(so_far[0])), max(timestamp, so_far[1])
        return (value if initializer is None else aggregator(key, value, initializer())), timestamp

    return added


class _OpenSlidingWindows(OpenInTimeline):
    """The open windows, in the order of starts and keys, for results at close."""

    def __init__(self, node: SlidingAggregate, compiled: Compiled, wait_ms: int) -> None:
        super().__init__(node, compiled, wait_ms)
        self._difference = node.windows.difference_ms

    def change(self, key: bytes, touch: Touch, *, exists: bool) -> None:
        """Add a created window, or remove a window whose aggregate was deleted."""
        entry_key = timed_key(touch.start, key)
        if not exists:
            self._timeline.remove(entry_key)
        elif not touch.exists:
            self._timeline.put(entry_key, b"", known=False)

    def close(self, stream_time: int, headers: Headers) -> None:
        before = stream_time - self._wait
        while self._timeline.next < before:
            entry_key, _ = self._timeline.take()
            start, key = time_of(entry_key), entry_key[8:]
            if self._loses and start < self._store.oldest:
                continue
            value, timestamp = self._store.read(key, start)
            window = Windowed(self._key(key), start, window_end(start, self._difference))
            self._child(window, value, None, timestamp, headers)
