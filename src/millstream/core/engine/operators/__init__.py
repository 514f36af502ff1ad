"""Operators: the compilers of all nodes but the asynchronous ones. Importing this package registers them with ``compile_node``."""

from __future__ import annotations

from millstream.core.engine.operators import (
    aggregations,
    foreign_keys,
    grace,
    processors,
    sinks,
    stateless,
    stream_joins,
    suppress,
    table_joins,
    tables,
    windows,
)

__all__ = [
    "aggregations",
    "foreign_keys",
    "grace",
    "processors",
    "sinks",
    "stateless",
    "stream_joins",
    "suppress",
    "table_joins",
    "tables",
    "windows",
]
