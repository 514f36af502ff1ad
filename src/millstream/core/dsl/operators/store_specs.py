"""Specifications of operators' stores, derived from the options of the program."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from millstream.core.dsl.graph import Graph, check_no_history, check_no_retention
from millstream.core.model import serdes
from millstream.core.model.calendars import NO_END, UnlimitedWindows, Windows
from millstream.core.model.durations import millis
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.windowed import Windowed
from millstream.core.model.windows import EmitStrategy, SessionWindows, SlidingWindows, TimeWindows
from millstream.core.topology.join_nodes import JoinTimes
from millstream.core.topology.stores import KeyValueSpec, OperatorUse, SessionSpec, StoreOptions, WindowSpec

AnyTimeWindows: TypeAlias = TimeWindows | SlidingWindows | Windows


def window_word(windows: AnyTimeWindows | SessionWindows) -> str:
    """Return the word for windows in the path of an aggregation."""
    if isinstance(windows, (TimeWindows, Windows)):
        return "windowed"
    return "sliding" if isinstance(windows, SlidingWindows) else "session"


def windowed_key(key: Serde[Any], windows: AnyTimeWindows) -> Serde[Windowed[Any]]:
    """Return the serde of the keys of results by window."""
    if isinstance(windows, Windows):
        return serdes.time_windowed(key, windows)
    return serdes.time_windowed(
        key, windows.difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
    )


def check_emit(windows: object, emit: EmitStrategy) -> None:
    """Reject results on window close for windows that never close."""
    if isinstance(windows, UnlimitedWindows) and emit.at_close:
        raise TopologyError(
            "an unlimited window never closes, so emit=ms.on_window_close would never emit a result; leave it out"
        )


def window_store(
    options: StoreOptions,
    windows: AnyTimeWindows,
    emit: EmitStrategy,
    key: Serde[Any],
    value: Serde[Any],
) -> WindowSpec:
    """Return the store of the aggregates per key and window.

    Raises:
        TopologyError: If the retention is shorter than the time in which aggregates can change.
    """
    check_no_history(options)
    if isinstance(windows, SlidingWindows):
        size = windows.difference_ms
        retention = _retention(options, 2 * size + windows.grace_ms, "twice the difference")
    else:
        size = windows.size_ms
        retention = _retention(options, min(size + windows.grace_ms, NO_END), "size")
    if emit.loses:
        retention += 1  # the time-ordered store of Kafka Streams can still read the start at a distance of its retention
    return WindowSpec(
        name=options.name,
        key=key,
        value=value,
        timestamped=True,
        **options.storage,
        cache=options.cache,
        retention=retention,
        size=size,
        order="time" if emit.at_close and not isinstance(windows, SlidingWindows) else "key",
        _operator=OperatorUse(
            windows=windows if isinstance(windows, Windows) else None,
            with_open=emit.at_close and isinstance(windows, SlidingWindows),
        ),
    )


def session_store(
    options: StoreOptions, windows: SessionWindows, emit: EmitStrategy, key: Serde[Any], value: Serde[Any]
) -> SessionSpec:
    """Return the store of the aggregates per key and session.

    Raises:
        TopologyError: If the retention is shorter than the time in which aggregates can change.
    """
    check_no_history(options)
    return SessionSpec(
        name=options.name,
        key=key,
        value=value,
        **options.storage,
        cache=options.cache,
        retention=_retention(options, windows.gap_ms + windows.grace_ms, "gap"),
        _operator=OperatorUse(with_open=emit.at_close),
    )


def _retention(options: StoreOptions, least: int, length: str) -> int:
    retention = least if options.retention is None else millis(options.retention)
    if retention < least:
        raise TopologyError(
            f"store {options.name!r}: a retention of {retention} ms would drop windows that can still change; set at "
            f"least {least} ms, which is {length} plus grace"
        )
    return retention


def open_store(graph: Graph, options: StoreOptions) -> KeyValueSpec:
    """Return the store of the open windows or sessions of an aggregation."""
    return bytes_store(options, graph.names.part(options.name, "-open"))


def bytes_store(
    options: StoreOptions,
    name: str,
    key: Serde[Any] = serdes.bytes,
    value: Serde[Any] = serdes.bytes,
) -> KeyValueSpec:
    """Return a key-value store with the storage of an operator's result."""
    return KeyValueSpec(name=name, key=key, value=value, **options.storage)


def join_store(
    options: StoreOptions, name: str, serdes: tuple[Serde[Any], Serde[Any]], times: JoinTimes
) -> WindowSpec:
    """Return the store with the records of one side of a stream-stream join."""
    check_no_history(options)
    check_no_retention(options)
    size = times.before + times.after
    return WindowSpec(
        name=name,
        key=serdes[0],
        value=serdes[1],
        retention=size + times.grace,
        size=size,
        retain_duplicates=True,
        _operator=OperatorUse(expired="late for a join"),
        **options.storage,
    )


def named_bytes(name: str) -> Serde[bytes]:
    """Return a serde of bytes with a name that identifies the layout of the bytes in the fingerprint of a store."""
    return dataclasses.replace(serdes.bytes, name=name)
