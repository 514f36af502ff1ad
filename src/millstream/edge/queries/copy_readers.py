"""Readers of local copies on this host, by engine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from millstream.core.queries.copy_reader import CopyReader

_READERS: Final[Mapping[str, str]] = {
    "lmdb": "LmdbQueries",
    "memory": "MemoryQueries",
    "rocksdb": "RocksQueries",
}
"""The class in ``millstream.drivers.<engine>.queries``, by engine. Modules are imported on first use."""


def open_reader(directory: str, task: str, engine: str) -> CopyReader:
    """Open the reader of a task's local copy."""
    module = import_module(f"millstream.drivers.{engine}.queries")
    reader: CopyReader = getattr(module, _READERS[engine])(f"{directory}/{task}/{engine}")
    return reader
