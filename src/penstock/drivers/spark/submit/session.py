"""The Spark session: the user's own, or one that is made for the application."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.core.model.errors import SparkRuntimeError

QUERY_CONF: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "200",
}
"""What a query needs, whatever session it runs in."""

_OWN_SESSION: Mapping[str, str] = {
    "spark.python.daemon.module": "penstock.edge.daemon",
    "spark.python.worker.reuse": "true",
    # A task's state server takes the first connection for its worker's. On a TCP port that can be a stranger's: a client that
    # looks for what listened on this port before, such as a broker. The server dies then, and the worker waits for ever.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.unix.domain.socket.dir": "/tmp",  # the path of a socket has to be short
    "spark.ui.showConsoleProgress": "false",
    # The JVM moves chunks, it does not process records: its optimising compiler would cost more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # A shuffle of chunks is a few large byte strings, read back from the page cache at once.
    "spark.shuffle.compress": "false",
    "spark.driver.memory": "2g",
    "spark.log.level": "FATAL",  # a failed batch is told once, by the application's own error
}


_CONFIGURING = threading.Lock()


def session_for(application_id: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """Give the active session, else a new one.

    Args:
        application_id: Name of the Spark application, if one is made.
        master: Spark master, if a session is made.
        conf: The user's Spark settings, if a session is made.

    Raises:
        SparkRuntimeError: If Spark does not start.
    """
    return SparkSession.getActiveSession() or _new_session(application_id, master, conf)


@contextmanager
def configured(
    session: SparkSession, conf: Mapping[str, str], shuffle_partitions: int | None
) -> Iterator[None]:
    """Set what a query needs while it is started: it keeps a copy, and the session gets its own settings back.

    Args:
        session: The session.
        conf: The user's Spark settings.
        shuffle_partitions: Wanted number of shuffle partitions; None is a power of two up to the number of cores, at most 8.
            A checkpoint keeps the number it was begun with.
    """
    partitions = partitions_of(session, shuffle_partitions)
    wanted = {**QUERY_CONF, **conf, "spark.sql.shuffle.partitions": str(partitions)}
    changed = {name: value for name, value in wanted.items() if session.conf.isModifiable(name)}
    with _CONFIGURING:
        before = {name: session.conf.get(name, None) for name in changed}
        try:
            for name, value in changed.items():
                session.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, old)


def partitions_of(session: SparkSession, shuffle_partitions: int | None) -> int:
    """Give the number of shuffle partitions a new query gets; see :func:`configured`."""
    return shuffle_partitions or _power_of_two(session.sparkContext.defaultParallelism)


def _power_of_two(cores: int) -> int:
    """Give the largest power of two up to the number of cores, at most 8: placement spreads tasks evenly over it."""
    return 1 << (min(cores, 8).bit_length() - 1)


def _new_session(application_id: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.master(master).appName(application_id)
    for name, value in {**_OWN_SESSION, **conf}.items():
        builder = builder.config(name, value)
    with _workers_see_our_path():
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise SparkRuntimeError(
                f"Spark does not start: {error}. Penstock needs Java 17 or newer (JAVA_HOME is honoured); "
                "`penstock doctor` says what is missing"
            ) from error


@contextmanager
def _workers_see_our_path() -> Iterator[None]:
    """Let the Python workers import what this program can import; they inherit the environment of the JVM."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYSPARK_PYTHON")}
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    os.environ["PYSPARK_PYTHON"] = before["PYSPARK_PYTHON"] or sys.executable
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
