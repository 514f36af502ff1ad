"""The Python worker daemon of Spark, with the imports that workers need made once, before it forks.

A fresh worker would spend about a second on them. Set as ``spark.python.daemon.module``. Spark starts one daemon for the
workers of its operators and one for each of its helpers (planning a read, committing a sink, ...); the helpers live for
moments and need little, so only the first kind is worth the preparation.
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
    """Import what operator workers need, freeze it for the garbage collector, and note the executor's process id."""
    for module in PRELOADED:
        importlib.import_module(module)
    # In a fork of the fork server it is set already: its parent is not the executor.
    os.environ.setdefault(
        importlib.import_module("millstream.drivers.async_worker").EXECUTOR, str(os.getppid())
    )
    gc.freeze()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == _OPERATORS:
        preload()
    manager()
