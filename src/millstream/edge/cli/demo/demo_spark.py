"""The Spark of the demo: a session of its own, and a JVM that is gone when the demo ends.

PySpark leaves its JVM to the end of the Python process, which it outlives by a moment; the demo waits for it, so that
whoever looks afterwards finds nothing.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from millstream.drivers.spark.driver.spark_session import session_for

_END_S = 10.0


def settings_in(home: Path) -> dict[str, str]:
    """Return the Spark settings that keep the warehouse of a session inside a directory."""
    return {"spark.sql.warehouse.dir": (home / "warehouse").as_uri()}


def start_spark(application_id: str, master: str, settings: dict[str, str]) -> tuple[str, int | None]:
    """Start Spark, with its session active in this thread; return the UI's URL, and the process id of the JVM if it is a child.

    Raises:
        SparkRuntimeError: If Spark does not start.
    """
    session = session_for(application_id, master, settings)
    process = _jvm()
    return session.sparkContext.uiWebUrl or "", None if process is None else process.pid


def stop_spark() -> None:
    """Stop the session and end the JVM; harmless without one."""
    context, process = SparkContext._active_spark_context, _jvm()
    if context is not None and process is not None and process.poll() is None:
        with suppress(Exception):  # a JVM that is dying is ended below
            context.stop()
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # PySpark's JVM ends at the end of its input
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_spark() -> None:
    """Kill the JVM; calls that wait for it fail."""
    process = _jvm()
    if process is not None:
        process.kill()


def _jvm() -> subprocess.Popen[bytes] | None:
    gateway: Any = SparkContext._gateway
    return getattr(gateway, "proc", None)
