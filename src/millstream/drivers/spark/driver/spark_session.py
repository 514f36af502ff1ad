"""The Spark session: the user's own session, or a new one for the application."""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlparse

from pyspark import SparkContext
from pyspark.sql import SparkSession, is_remote

from millstream.core.model.errors import SparkRuntimeError
from millstream.drivers.private import process_directory
from millstream.drivers.spark.driver.launch import (
    LOOPBACK,
    check_java,
    environment,
    executor_java_options,
    given_to_spark,
    is_local,
    is_one_process,
)
from millstream.drivers.spark.driver.wanted import FILE_MANAGER, QUERY_CONF, is_settable, session_conf
from millstream.drivers.spark.driver.worker_python import worker_python

logger = logging.getLogger("millstream.application")

_WITH_FEW_PROCESSES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_OWN_SESSION: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",  # the application's own error reports a failed batch once
}
"""Settings of a session that is created here, unless the user sets them."""


_ONE_ATTEMPT: Final = re.compile(r"local(\[\s*(\*|\d+)\s*(,\s*1\s*)?\])?")
"""Masters with one attempt per Spark task."""


def _protection_settings(master: str, scratch: Path, protected: bool) -> dict[str, str]:
    """Return settings that keep other users and hosts from reaching a session.

    A local session needs no network. A process that reaches its block manager can read the data that Spark sends to its tasks, for
    example settings of Kafka clients. The session therefore listens only on the loopback interface and requires a secret.

    Args:
        protected: Whether the user's Spark has a secret. If so, network traffic is encrypted.
    """
    guarded = {"spark.ui.killEnabled": "false", "spark.python.unix.domain.socket.dir": str(scratch)}
    if not is_local(master):
        guarded["spark.python.unix.domain.socket.dir"] = "/tmp"  # must exist on other executors and be short
        return guarded | ({"spark.network.crypto.enabled": "true"} if protected else {})
    guarded |= {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.local.dir": str(scratch / "spark"),
    }
    if not is_one_process(master):  # separate executors need the secret; otherwise Spark generates one
        guarded["spark.authenticate.secret"] = secrets.token_hex(32)
    return guarded


_CONFIGURING = threading.Lock()


def session_for(
    application_id: str, master: str | None, conf: Mapping[str, str], log: Path | None = None
) -> SparkSession:
    """Return the active session, or a new one.

    A new session has Millstream's defaults. The user's Spark settings (``spark-submit``, ``spark-defaults.conf``) override them, and
    the arguments override both.

    Args:
        application_id: Name of a new Spark application, unless the user names it.
        master: Master of a new session. None means the master given to Spark, or else ``local[*]``.
        conf: The user's Spark settings for a new session.
        log: File for the output of a new JVM and its Python workers. None means this program's output.

    Raises:
        SparkRuntimeError: If Spark does not start, or the session belongs to Spark Connect.
    """
    refuse_connect()
    ours = dict(conf) if master is None else {**conf, "spark.master": master}
    session = SparkSession.getActiveSession()
    if session is None and SparkContext._active_spark_context is not None:  # active in another thread
        session = SparkSession.builder.getOrCreate()
    if session is None:
        return _new_session(application_id, ours, log)
    if master not in (None, session.sparkContext.master):
        logger.warning(
            "master=%r is ignored: a session with the master %r is active",
            master,
            session.sparkContext.master,
        )
    return session


def refuse_connect() -> None:
    """Reject Spark Connect, where the Spark driver is another program."""
    if is_remote():
        raise SparkRuntimeError(
            "this program uses Spark Connect, where the Spark driver runs elsewhere, but an application and ms.spark.read_kafka plan, report "
            "and commit offsets beside the Spark driver. Use a classic session (without remote(...) and "
            "SPARK_REMOTE), or run the topology with ms.spark.transform, which works there"
        )


@contextmanager
def configured(
    session: SparkSession, conf: Mapping[str, str], shuffle_partitions: int | None, checkpoint: str
) -> Iterator[None]:
    """Set the settings that a query copies at its start. The session's own settings are restored afterwards.

    Args:
        shuffle_partitions: Number of shuffle partitions of a new checkpoint. None means a power of two up to the number of cores,
            at most 8. An existing checkpoint keeps its number.
    """
    partitions = partitions_of(session, shuffle_partitions)
    use_this_python()
    wanted = {
        **QUERY_CONF,
        **_files_conf(session, checkpoint),
        **conf,
        "spark.sql.shuffle.partitions": str(partitions),
    }
    changed = {name: value for name, value in wanted.items() if is_settable(session, name)}
    own: Any = session._jsparkSession.sessionState().conf()  # `session.conf` rejects the file manager
    with _CONFIGURING:
        before = {name: session.conf.get(name, None) for name in changed}
        try:
            for name, value in changed.items():
                own.setConfString(name, value)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    own.unsetConf(name)
                else:
                    own.setConfString(name, old)


def _files_conf(session: SparkSession, checkpoint: str) -> Mapping[str, str]:
    """Return the setting of the file manager that writes the checkpoint.

    Without Hadoop's native library, Spark's default manager starts ten processes for each file on a local file system: `chmod` and
    `readlink`, for the file and its checksum. The other manager starts two. It does not replace files, so it is used only for a query with
    one attempt per Spark task; see ``remove_abandoned``. Other file systems need the default manager for atomic renames.
    """
    one_attempt = _ONE_ATTEMPT.fullmatch(str(session.sparkContext.master)) is not None
    return (
        {FILE_MANAGER: _WITH_FEW_PROCESSES}
        if one_attempt and scheme_of(session, checkpoint) == "file"
        else {}
    )


def scheme_of(session: SparkSession, location: str) -> str:
    """Return the scheme of a location, or the scheme of Spark's default file system."""
    jvm: Any = session._jvm
    hadoop = session._jsparkSession.sessionState().newHadoopConf()
    default = jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(hadoop).getScheme()
    return urlparse(location).scheme or str(default)


def use_this_python() -> None:
    """Make the Python workers of a local session use this Python, unless the user has chosen another.

    Without ``PYSPARK_PYTHON``, PySpark uses ``python3`` from ``PATH``. Unless the environment is activated, this is a different
    Python. A Spark Connect server chooses its own Python.
    """
    context = SparkContext._active_spark_context
    if context is not None and is_local(str(context.master)) and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = worker_python()


def partitions_of(session: SparkSession, shuffle_partitions: int | None) -> int:
    """Return the number of shuffle partitions of a new query. See :func:`configured`.

    By default, it is the largest power of two up to the number of cores, at most 8. Placement spreads tasks evenly over it.
    """
    return shuffle_partitions or 1 << (min(session.sparkContext.defaultParallelism, 8).bit_length() - 1)


def _new_session(application_id: str, ours: Mapping[str, str], log: Path | None) -> SparkSession:
    check_java()
    try:
        with environment(ours):
            given = given_to_spark(ours, log)
            master = ours.get("spark.master") or given.get("spark.master") or "local[*]"
            defaults = {
                "spark.master": master,
                "spark.app.name": application_id,
                **_OWN_SESSION,
                **session_conf(master),
            }
            protected = {**given, **ours}.get("spark.authenticate") == "true"
            defaults |= {
                **executor_java_options(master),
                **_protection_settings(master, process_directory(), protected),
            }
            builder = SparkSession.builder
            for name, value in {**defaults, **given, **ours}.items():
                builder = builder.config(name, value)
            return builder.getOrCreate()
    except Exception as error:
        why = str(error) if log is None else f"{error} (its output is in {log})"
        raise SparkRuntimeError(
            f"Spark failed to start: {why}. Millstream needs Java 17 or newer (JAVA_HOME is honoured); `millstream "
            "doctor` shows what is missing"
        ) from error
