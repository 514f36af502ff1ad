"""Translates the errors with which Spark ends a query into errors that state the location and the next step.

An error of Millstream that passed through Spark is recovered unchanged. Spark's own errors about the checkpoint are explained as a full
disk or as damage, because Spark names neither the full disk nor a remedy. All other errors keep the first part of Spark's message,
without plans, offsets and the stack of Java.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from millstream.core.model.errors import CheckpointError, MillstreamError, SparkRuntimeError
from millstream.drivers.spark.crossing import find_error
from millstream.edge.checkpoint.checkpoint_health import ways_out
from millstream.edge.checkpoint.disk_space import Usage, free_space

_WRITING: Final = (
    "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT",
    "STREAMING_CHECKPOINT_LOG_WRITE_FAILURE",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "No space left on device",
    "Disk quota exceeded",
)
_DAMAGE: Final = (
    "CANNOT_LOAD_STATE_STORE.",
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
    "STDS_FAILED_TO_READ_OPERATOR_METADATA",
    "org.apache.hadoop.fs.ChecksumException",
)
_NO_DAMAGE: Final = ("UNRELEASED_THREAD_ERROR", "OUT_OF_MEMORY")
"""State could not be loaded because of a thread or the memory of the JVM. The checkpoint is intact, and another query can read it."""

_CALL: Final = re.compile(r"An error occurred while calling [^\n]*\n: ")
_CAUSE: Final = "Caused by: "

_Trouble: TypeAlias = Literal["writing", "damage"]


def explained(error: Exception, checkpoint: str) -> MillstreamError:
    """Translate any error that ends a query, or with which its start fails, into an error of Millstream."""
    if isinstance(error, MillstreamError):
        return error
    if is_unanswered(error):
        return spark_is_gone(error)
    try:
        text = str(error)
    except (OSError, Py4JError) as gone:  # only the JVM has the text of its exceptions
        return spark_is_gone(gone)
    return translated(text, checkpoint)


def start_error(error: BaseException, checkpoint: str) -> SparkRuntimeError | None:
    """Translate an error of Spark with which a start fails, before there is a query; return None for all other errors."""
    if is_unanswered(error):
        return spark_is_gone(error)
    if not isinstance(error, (Py4JJavaError, PySparkException)):
        return None
    try:
        reason = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    except (OSError, Py4JError) as gone:  # only the JVM has the text of its exceptions
        return spark_is_gone(gone)
    return SparkRuntimeError(
        f"Spark cannot start the query on the checkpoint {checkpoint}: {reason.strip().partition(chr(10))[0]}. Correct checkpoint_location, "
        "or the settings with which Spark reaches it (spark={...})"
    )


def translated(text: str, checkpoint: str, usage: Usage = shutil.disk_usage) -> MillstreamError:
    """Translate the text of a query's exception into an error of Millstream."""
    ours = find_error(text)
    if ours is not None:
        return ours
    message = _message(text)
    trouble, message = _trouble(message), _without_stack(message)
    if trouble == "writing":
        return SparkRuntimeError(
            f"Spark cannot write the checkpoint {checkpoint}. Either a disk is full: {_disks(checkpoint, usage)}. Or another program writes to the "
            "checkpoint: only one driver may use it, and others wait with standby=True. Correct that, and start the application "
            f"again: the micro-batch was not committed and will be repeated. Spark reports: {message}"
        )
    if trouble == "damage":
        return CheckpointError(
            f"Spark cannot read the state in the checkpoint {checkpoint}: files of it are damaged or cannot be opened, or a disk is full "
            f"({_disks(checkpoint, usage)}). {ways_out(None)}. Spark reports: {message}"
        )
    return SparkRuntimeError(
        "the Spark query ended with an error that is not Millstream's. Correct its cause, and start the application again: the "
        f"micro-batch was not committed and will be repeated. Spark reports: {message}"
    )


def is_transient(text: str) -> bool:
    """Return whether a query ended because Spark lost a process or a connection, not because of data or the checkpoint.

    Spark has no common class or error condition for lost processes: some messages contain only the SQL state. Therefore every error
    counts that is neither Millstream's own nor about the checkpoint.
    """
    return find_error(text) is None and _trouble(_message(text)) is None


def is_unanswered(error: BaseException) -> bool:
    """Return whether a call into the JVM had no answer, as opposed to an exception in the JVM."""
    return isinstance(error, (ConnectionError, TimeoutError, Py4JError)) and not isinstance(
        error, Py4JJavaError
    )


def _message(text: str) -> str:
    """Return Spark's message without the plans and offsets after it."""
    return text.split("=== Streaming Query ===")[0].strip()


def _without_stack(message: str) -> str:
    """Return the first line of a Java exception that Py4J has passed on, with its last cause; return other messages unchanged."""
    call = _CALL.match(message)
    if call is None:
        return message
    first, *lines = message[call.end() :].splitlines() or [message]
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    return f"{first} ({causes[-1]})" if causes else first


def _trouble(message: str) -> _Trouble | None:
    """Classify a message about the checkpoint; return None for other messages."""
    if any(sign in message for sign in _WRITING):
        return "writing"
    damaged = any(sign in message for sign in _DAMAGE) and not any(sign in message for sign in _NO_DAMAGE)
    return "damage" if damaged else None


def _disks(checkpoint: str, usage: Usage) -> str:
    """Return the free space of the disks to which this host writes for a query, as text."""
    paths = {"Spark's local files": tempfile.gettempdir()}
    url = urlparse(checkpoint)
    if url.scheme == "file":
        paths = {"the checkpoint": unquote(url.path), **paths}
    disks = [f"the disk of {user}, {path}, has {free_space(path, usage)}" for user, path in paths.items()]
    return "; ".join(disks) if url.scheme == "file" else f"check {checkpoint}, and here {disks[0]}"


def spark_is_gone(gone: BaseException) -> SparkRuntimeError:
    return SparkRuntimeError(
        f"Spark has ended: its JVM does not answer ({type(gone).__name__}). It was killed, or ran out of memory (setting "
        "spark={'spark.driver.memory': ...}). Nothing is lost: start the application again, in a new program"
    )
