"""Readers of local copies on this host, by engine."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Final

from millstream.core.queries.copy_reader import CopyReader

_READERS: Final[Mapping[str, str]] = {
    "lmdb": "LmdbQueries",
    "memory": "MemoryQueries",
    "rocksdb": "RocksQueries",
}
"""The class in ``millstream.drivers.<engine>.<engine>_queries``, by engine. Modules are imported on first use."""


def open_reader(directory: str, task: str, engine: str) -> CopyReader:
    allow_many_files()
    module = import_module(f"millstream.drivers.{engine}.{engine}_queries")
    reader: CopyReader = getattr(module, _READERS[engine])(f"{directory}/{task}/{engine}")
    return reader


@cache
def allow_many_files() -> None:
    """Raise the soft limit of this process's open files to the hard limit, as a JVM does at its start.

    A reader takes two files, and a query of all entries opens a reader for each task. At the usual soft limit of 1,024 files, 500 tasks
    would leave none for the connections of Spark's processes to the application.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS reports a hard limit that it does not accept
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
