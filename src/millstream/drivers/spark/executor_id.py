"""The executor of this process, as named in Spark's UI and logs.

PySpark does not pass the name to its workers. It is in the environment that an executor inherits from Kubernetes, YARN or a standalone
worker, and a Python worker inherits the environment of its executor.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlparse

from pyspark import TaskContext

LOCAL: Final = "local"


def executor_in(environment: Mapping[str, str]) -> str:
    """Return the id of the executor that an environment belongs to, or ``local`` if it belongs to the program.

    Example:
        >>> executor_in({"SPARK_LOG_URL_STDOUT": "http://h:8081/logPage/?appId=a&executorId=3&logType=stdout"}), executor_in({})
        ('3', 'local')
    """
    log = parse_qs(urlparse(environment.get("SPARK_LOG_URL_STDOUT", "")).query)
    known = (
        environment.get("SPARK_EXECUTOR_ID"),
        environment.get("CONTAINER_ID"),
        *log.get("executorId", ()),
    )
    return next(filter(None, known), LOCAL)


def this_executor() -> str:
    """Return the host and the executor of this process, as ``host/executor``."""
    return f"{socket.gethostname()}/{executor_in(os.environ)}"


def where_it_runs() -> str:
    """Return where this process runs, for its errors. Empty in the Spark driver and under a local master."""
    if TaskContext.get() is None or executor_in(os.environ) == LOCAL:
        return ""
    return f" (executor {executor_in(os.environ)} on host {socket.gethostname()})"
