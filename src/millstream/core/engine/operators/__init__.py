"""Operators: the compilers of all node types. Importing this package registers them with ``compile_node``."""

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
