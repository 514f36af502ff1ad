"""What Spark says when a query ends, in words that name the place and what to do.

An error of ours that has gone through Spark is found again. Of Spark's own, those about the checkpoint are disks by what they mean: Spark
names neither the disk that is full nor a way out. All others keep Spark's first part, without plans and offsets.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote, urlparse

from millstream.core.model.errors import CheckpointError, MillstreamError, SparkRuntimeError
from millstream.drivers.spark import wire
from millstream.edge.checkpoint.checkpoint_health import ways_out
from millstream.edge.checkpoint.disk_space import Usage, free_space

_DISK: Final = (
    "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT",
    "STREAMING_CHECKPOINT_LOG_WRITE_FAILURE",
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
"""State could not be loaded because a thread or the memory of the JVM failed. The checkpoint is whole, and another query can read it."""

_Trouble: TypeAlias = Literal["disk", "damage"]


def translated(text: str, checkpoint: str, usage: Usage = shutil.disk_usage) -> MillstreamError:
    """Translate the text of a query's exception into an error of Millstream."""
    ours = wire.find_error(text)
    if ours is not None:
        return ours
    message = _message(text)
    trouble = _trouble(message)
    if trouble == "disk":
        return SparkRuntimeError(
            f"Spark cannot write the checkpoint {checkpoint}, most often because a disk is full: {_disks(checkpoint, usage)}. Free some space, "
            f"and start the application again: the micro-batch was not committed and will be repeated. Spark reports: {message}"
        )
    if trouble == "damage":
        return CheckpointError(
            f"Spark cannot read the state in the checkpoint {checkpoint}: files of it are damaged or cannot be opened, or a disk is full "
            f"({_disks(checkpoint, usage)}). {ways_out(None)}. Spark reports: {message}"
        )
    return SparkRuntimeError(f"the Spark query ended with an error that is not Millstream's: {message}")


def is_transient(text: str) -> bool:
    """Return whether the exception of a query is about a lost process or connection of Spark, not about data or the checkpoint.

    Spark has no common class or condition for lost processes: some messages have only the SQL state.
    """
    return wire.find_error(text) is None and _trouble(_message(text)) is None


def _message(text: str) -> str:
    """Return Spark's message without the plans and offsets after it."""
    return text.split("=== Streaming Query ===")[0].strip()


def _trouble(message: str) -> _Trouble | None:
    """Return what is wrong with the checkpoint; None if the message is not about it."""
    if any(sign in message for sign in _DISK):
        return "disk"
    damaged = any(sign in message for sign in _DAMAGE) and not any(sign in message for sign in _NO_DAMAGE)
    return "damage" if damaged else None


def _disks(checkpoint: str, usage: Usage) -> str:
    """Return the free space where this host writes for a query, as text."""
    disks_by_user = {"Spark's local files": tempfile.gettempdir()}
    url = urlparse(checkpoint)
    if url.scheme == "file":
        disks_by_user = {"the checkpoint": unquote(url.path), **disks_by_user}
    disks = [
        f"the disk of {what}, {path}, has {free_space(path, usage)}" for what, path in disks_by_user.items()
    ]
    return "; ".join(disks) if url.scheme == "file" else f"check {checkpoint}, and here {disks[0]}"


def spark_is_gone(gone: Exception) -> SparkRuntimeError:
    """Return the error for a JVM that no longer answers."""
    return SparkRuntimeError(
        f"Spark has ended: its JVM does not answer ({type(gone).__name__}). It was killed, or ran out of memory (setting "
        "spark={'spark.driver.memory': ...}). Nothing is lost: start the application again, in a new program"
    )
