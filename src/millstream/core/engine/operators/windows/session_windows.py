"""Aggregations by session: a record merges the sessions around it into one.

The bounds of a session are part of its key, so a session that grows becomes a new session: the old one is deleted, and the new one is
stored and forwarded. A closed session accepts no more records, even while it is still in the store.

If results are emitted at close, a second store contains the open sessions in the order of their ends, starts and keys. The sessions that
close next are its first entries. The main store is ordered by key, so that a record finds the sessions around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.operators.windows.window_operator import (
    Add,
    OpenInTimeline,
    Windower,
    aggregation,
)
from millstream.core.engine.timeline import time_of, timed_key
from millstream.core.model.record import Headers
from millstream.core.model.windowed import Windowed
from millstream.core.topology.window_nodes import SessionAggregate

Sessions = list[tuple[int, int, Any]]
LATE: Final = "late for a session"


@compile_node.register
def _compile(node: SessionAggregate, compiled: Compiled) -> Call:
    wait = node.windows.gap_ms + node.windows.grace_ms
    sessions = None if node.open is None else _OpenSessions(node, compiled, wait)
    add = _adding(node, compiled, sessions)
    store = compiled.runtime.stores[node.store.name]
    made = aggregation(
        node, compiled, Windower(add, wait, sessions, node.emit, wait + 1, observe=store.observe)
    )
    compiled.shared[node.name] = made.advance
    return made.call


def _adding(node: SessionAggregate, compiled: Compiled, open_ones: _OpenSessions | None) -> Add:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store, key_bytes = runtime.stores[node.store.name], node.store.key.serialize
    find, write, aggregated = store.find, store.write, aggregation_of(node)
    gap, old_again = node.windows.gap_ms, compiled.reads_old_again(node)

    def add(key: Any, value: Any, timestamp: int, headers: Headers, first_open: int) -> bool:
        try:
            stored_key = key_bytes(key)
            first = timestamp - gap if timestamp - gap > first_open else first_open
            sessions = list(find(stored_key, first, timestamp + gap))
            start = end = timestamp
            for old_start, old_end, _ in sessions:
                if old_start < start:
                    start = old_start
                if old_end > end:
                    end = old_end
            if end < first_open:
                runtime.drop(LATE)
                return True
            new = aggregated(key, value, sessions)
            sessions = list(find(stored_key, first, timestamp + gap)) if old_again else sessions
            write(stored_key, start, end, new)
            for old_start, old_end, _ in sessions:
                if (old_start, old_end) != (start, end):
                    write(stored_key, old_start, old_end, None)
            if open_ones is not None:
                open_ones.change(stored_key, sessions, start, end, exists=new is not None)
                return False
        except Exception as error:
            runtime.on_error("process", name, error)
            return False
        if start == end:
            child(Windowed(key, start, end), new, sessions[0][2] if sessions else None, end, headers)
            return False
        for old_start, old_end, old in sessions:
            child(Windowed(key, old_start, old_end), None, old, old_end, headers)
        child(Windowed(key, start, end), new, None, end, headers)
        return False

    return add


def aggregation_of(node: SessionAggregate) -> Callable[[Any, Any, Sessions], Any]:
    """Return a function that maps key, value and the sessions that a record merges to the aggregate of the merged session.

    The aggregates of the sessions are their third fields.
    """
    initializer, aggregator, merger = node.initializer, node.aggregator, node.merger

    def aggregated(key: Any, value: Any, sessions: Sessions) -> Any:
        so_far = None if initializer is None else initializer()
        for _, _, aggregate in sessions:
            first = initializer is None and so_far is None
            so_far = aggregate if first else merger(key, so_far, aggregate)
        return value if initializer is None and so_far is None else aggregator(key, value, so_far)

    return aggregated


class _OpenSessions(OpenInTimeline):
    """The open sessions, for results at close."""

    def change(self, key: bytes, sessions: Sessions, start: int, end: int, *, exists: bool) -> None:
        """Replace the merged sessions with the new session.

        Args:
            exists: True if the new session has an aggregate; False if the aggregator deleted it.
        """
        known = any((old_start, old_end) == (start, end) for old_start, old_end, _ in sessions)
        for old_start, old_end, _ in sessions:
            if not exists or (old_start, old_end) != (start, end):
                self._timeline.remove(_entry_key(key, old_start, old_end))
        if exists and not known:
            self._timeline.put(_entry_key(key, start, end), b"", known=False)

    def close(self, stream_time: int, headers: Headers) -> None:
        before = stream_time - self._wait
        while self._timeline.next < before:
            entry_key, _ = self._timeline.take()
            end, start, key = time_of(entry_key), time_of(entry_key[8:16]), entry_key[16:]
            if self._loses and self._store.has_expired(end):
                continue
            aggregate = self._store.read(key, start, end)
            self._child(Windowed(self._key(key), start, end), aggregate, None, end, headers)


def _entry_key(key: bytes, start: int, end: int) -> bytes:
    return timed_key(end, timed_key(start, key))
