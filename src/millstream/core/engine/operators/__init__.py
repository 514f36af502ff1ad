"""Operators: how each kind of node runs. Importing this package teaches ``compile_node`` all of them."""

from __future__ import annotations

from millstream.core.engine.asynchronous import operators as asynchronous
from millstream.core.engine.operators import (
    aggregations,
    calendar_windows,
    foreign_keys,
    grace,
    processors,
    session_windows,
    sinks,
    sliding,
    stateless,
    stream_joins,
    suppress,
    table_joins,
    tables,
    time_windows,
    window_columns,
)

__all__ = [
    "aggregations",
    "asynchronous",
    "calendar_windows",
    "foreign_keys",
    "grace",
    "processors",
    "session_windows",
    "sinks",
    "sliding",
    "stateless",
    "stream_joins",
    "suppress",
    "table_joins",
    "tables",
    "time_windows",
    "window_columns",
]
