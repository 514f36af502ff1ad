"""Operators: the compilers of all node types. Importing this package registers them with ``compile_node``."""

from __future__ import annotations

from millstream.core.engine.asynchronous import operators as asynchronous
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
    "asynchronous",
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
