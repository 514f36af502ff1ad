"""Options: what a data source of this package sends to the processes that Spark runs for it.

A data source has two roles. In the Spark driver it plans and commits, in processes that do not receive the files sent to executors. In
executors it reads and writes. An option therefore has one part per role, which is unpickled only there. The driver's processes run
on the host of the program and can import what the program can import.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys
from typing import Any, NamedTuple

from pyspark import cloudpickle

from millstream.drivers.spark.logs import WorkerLogs


class _Parts(NamedTuple):
    driver: bytes
    executors: bytes
    path: tuple[str, ...]
    logs: WorkerLogs


def option_of(driver: object, executors: object) -> str:
    """Return two values as the text of an option: one for the Spark driver, and one for executors."""
    path = tuple(directory or os.getcwd() for directory in sys.path)
    parts = _Parts(
        cloudpickle.dumps(driver), cloudpickle.dumps(executors), path, WorkerLogs.of_this_process()
    )
    return base64.b64encode(pickle.dumps(tuple(parts))).decode()


def in_driver(option: str) -> Any:
    """Return the driver's part of an option. Its process can import what the program could import."""
    parts = _decoded_parts(option)
    sys.path.extend(directory for directory in parts.path if directory not in sys.path)
    return cloudpickle.loads(parts.driver)


def in_executor(option: str) -> Any:
    return cloudpickle.loads(_decoded_parts(option).executors)


def _decoded_parts(option: str) -> _Parts:
    parts = _Parts(*pickle.loads(base64.b64decode(option)))
    parts.logs.apply()
    return parts
