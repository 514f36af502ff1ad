"""Spark's Python worker daemon; it imports the modules that workers need once, before it forks workers.

Without it, each new worker would spend about a second on these imports. It is set as ``spark.python.daemon.module``. Spark starts one
daemon for the workers of its operators and one for each of its helpers (planning a read, committing a sink, ...). Helpers are short-lived
and need few modules, so only the daemon for operators imports in advance.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from pyspark.daemon import manager

_OPERATORS = "pyspark.worker"
PRELOADED = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.streaming.stateful_processor_util",
    "millstream",
)


def preload() -> None:
    """Import what operator workers need, exclude it from garbage collection, and store the executor's process id."""
    for module in PRELOADED:
        importlib.import_module(module)
    # A fork of the fork server already has this variable, because its parent is not the executor.
    os.environ.setdefault(
        importlib.import_module("millstream.drivers.async_worker").EXECUTOR, str(os.getppid())
    )
    gc.freeze()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == _OPERATORS:
        preload()
    manager()
