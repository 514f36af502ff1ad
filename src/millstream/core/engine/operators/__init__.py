"""Operators: how each kind of node runs. Importing this package teaches ``compile_node`` all of them."""

from __future__ import annotations

from millstream.core.engine.asynchronous import operators as asynchronous
from millstream.core.engine.operators import (
    aggregations,
    calendars,
    foreign_keys,
    grace,
    processors,
    sessions,
    sinks,
    sliding,
    stateless,
    stream_joins,
    suppress,
    table_joins,
    tables,
    window_columns,
    windows,
)

__all__ = [
    "aggregations",
    "asynchronous",
    "calendars",
    "foreign_keys",
    "grace",
    "processors",
    "sessions",
    "sinks",
    "sliding",
    "stateless",
    "stream_joins",
    "suppress",
    "table_joins",
    "tables",
    "window_columns",
    "windows",
]
