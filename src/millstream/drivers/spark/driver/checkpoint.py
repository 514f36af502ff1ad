"""Access to a checkpoint from outside: read a stopped query's progress, move its state, delete it or remove abandoned attempts.

Spark writes ``offsets/<n>`` before micro-batch n runs and ``commits/<n>`` when it is complete. The largest numbers therefore show the
progress of a query and whether the next start repeats its last micro-batch. Both are text files that contain a version, Spark's
settings as JSON, and one line per source with the offset from Millstream's planner.

A local checkpoint is read as files. All others are accessed through Spark's Hadoop file systems, which reach HDFS or S3 with the
credentials of the session.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millstream.core.model.errors import CheckpointError, SparkRuntimeError

_PARTITIONS = "spark.sql.shuffle.partitions"
_READABLE = "v1"


class Files(Protocol):
    """The files of a checkpoint, local or remote."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory of the checkpoint, or none if the directory does not exist."""

    def read(self, path: str) -> str: ...

    def exists(self) -> bool: ...

    def local(self, path: str) -> Path | None:
        """Return the path of a file on a local disk, or None if the checkpoint is elsewhere."""

    def delete(self) -> None: ...


@dataclass(frozen=True)
class LocalFiles:
    root: Path

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, or none if it does not exist.

        Raises:
            CheckpointError: If it is not a directory, or this user may not read it.
        """
        try:
            return [path.name for path in (self.root / directory).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unreadable(directory, error) from None

    def read(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            CheckpointError: If it cannot be read.
        """
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise self._unreadable(path, error) from None

    def _unreadable(self, path: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {str(self.root)!r} cannot be read: {error.strerror or error}: {str(self.root / path)!r}. Let "
            "checkpoint_location, or state_dir, name a directory that belongs to the user who runs the application"
        )

    def local(self, path: str) -> Path:
        return self.root / path

    def exists(self) -> bool:
        return self.root.is_dir()

    def delete(self) -> None:
        if self.root.is_dir():
            shutil.rmtree(self.root)


class HadoopFiles:
    """A checkpoint on a Hadoop file system, accessed through a session's JVM."""

    def __init__(self, session: SparkSession, location: str) -> None:
        context: Any = session.sparkContext
        self._jvm = context._jvm
        self._root = self._jvm.org.apache.hadoop.fs.Path(location)
        self._system = self._root.getFileSystem(context._jsc.hadoopConfiguration())

    def names(self, directory: str) -> list[str]:
        path = self._path(directory)
        if not self._system.exists(path):
            return []
        return [status.getPath().getName() for status in self._system.listStatus(path)]

    def read(self, path: str) -> str:
        stream = self._system.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def local(self, path: str) -> None:
        """Return None, because the file system verifies checksums itself."""

    def exists(self) -> bool:
        return bool(self._system.exists(self._root))

    def delete(self) -> None:
        self._system.delete(self._root, True)

    def _path(self, relative: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, relative) if relative else self._root


def files_of(location: str, session: Callable[[], SparkSession]) -> Files:
    """Return the files of a checkpoint.

    Args:
        location: A URL. Without a scheme, it refers to Spark's default file system.
        session: Returns a session and starts one if necessary. Not called for ``file:`` URLs.
    """
    path = local_path(location)
    return HadoopFiles(session(), location) if path is None else LocalFiles(path)


def local_path(location: str) -> Path | None:
    """Return the path of a checkpoint at a ``file:`` URL of this host; None if Spark is needed to read it."""
    url = urlparse(location)
    is_local = url.scheme == "file" and url.netloc in ("", "localhost")
    return Path(unquote(url.path)) if is_local else None


@dataclass(frozen=True)
class CheckpointProgress:
    """The progress of a query.

    Attributes:
        batch: Number of the last planned micro-batch.
        committed: Whether this micro-batch is complete. If not, the next start repeats it.
        rescaling: Whether it is an interrupted rescale, which must be repeated first.
        shuffle_partitions: Number of partitions of the state. After an interrupted rescale, the target number.
        planned: Offset at the end of the last planned micro-batch.
        processed: Offset at the end of the last complete micro-batch. Empty if there is none.
        last_complete: Number of the last complete micro-batch. -1 if there is none.
        previous: Offset at the end of the micro-batch that was planned before the last one. Empty if there is none.
    """

    batch: int
    committed: bool
    rescaling: bool
    shuffle_partitions: int
    planned: Mapping[str, Any]
    processed: Mapping[str, Any]
    last_complete: int = -1
    previous: Mapping[str, Any] = field(default_factory=dict)


def progress_of(files: Files) -> CheckpointProgress | None:
    """Read the progress of a query. Return None if no micro-batch was planned.

    Raises:
        CheckpointError: If this version cannot read the offset log.
    """
    planned, committed = numbers(files.names("offsets")), numbers(files.names("commits"))
    return progress_from(planned, committed, lambda batch: files.read(f"offsets/{batch}"))


def progress_from(
    planned: Sequence[int], committed: Collection[int], text: Callable[[int], str]
) -> CheckpointProgress | None:
    """Return the progress of a query, or None if no micro-batch was planned.

    Args:
        text: Returns the stored offset of a micro-batch. Called only for the newest two.

    Raises:
        CheckpointError: If this version cannot read the offset log.
    """
    if not planned:
        return None
    batch, complete = planned[-1], planned[-1] in committed
    partitions, last = offset_of(text(batch), batch)
    if len(planned) == 1:
        return CheckpointProgress(
            batch, complete, False, partitions, last, last if complete else {}, batch if complete else -1
        )
    partitions_before, previous = offset_of(text(planned[-2]), planned[-2])
    if complete:
        return CheckpointProgress(batch, True, False, partitions, last, last, batch, previous)
    if planned[-2] not in committed:
        return CheckpointProgress(batch, False, False, partitions, last, {}, -1, previous)
    # Only a rescale changes the number of partitions between micro-batches.
    rescaling = partitions != partitions_before
    return CheckpointProgress(batch, False, rescaling, partitions, last, previous, planned[-2], previous)


def numbers(names: list[str]) -> list[int]:
    """Return the numbers among file names, ascending. Temporary files and checksums are skipped."""
    return sorted(int(name) for name in names if name.isdigit())


def offset_of(text: str, batch: int) -> tuple[int, Mapping[str, Any]]:
    """Read a file of the offset log.

    Returns:
        The number of shuffle partitions, and the planner's offset.
    """
    version, *lines = text.splitlines() or [""]
    if re.fullmatch(r"v\d+", version) and (version != _READABLE or len(lines) > 2):
        raise CheckpointError(
            f"offsets/{batch} cannot be read by Millstream: it has version {version!r} and {len(lines) - 1} sources, but "
            f"{_READABLE!r} and one source are expected. The checkpoint belongs to another query, or a newer Spark has "
            "written it"
        )
    try:
        partitions = int(json.loads(lines[0])["conf"][_PARTITIONS])
        offset = json.loads(lines[1]) if lines[1] != "-" else {}
    except (ValueError, LookupError, TypeError):
        offset = None
    if version != _READABLE or not isinstance(offset, dict) or "\ufffd" in text:
        raise CheckpointError(f"offsets/{batch} cannot be read: {beginning_of(text)}")
    return partitions, offset


def beginning_of(text: str) -> str:
    """Return how a file begins that cannot be read, for an error."""
    return f"it begins with {text[:40]!r}" if text else "it is empty"


def rescale(session: SparkSession, location: str, partitions: int) -> None:
    """Move the state of a stopped query to another number of partitions, as a micro-batch without records.

    An interruption loses nothing: the state of the previous micro-batch stays, and a repeated rescale starts from it.
    """
    try:
        session._streamingCheckpointManager.repartition(location, partitions)
    except Py4JError as error:
        reason = str(getattr(error, "java_exception", None) or error).partition("\n")[0]
        raise SparkRuntimeError(
            f"Spark cannot move the state of {location} to {partitions} partitions: {reason}. The checkpoint still has its old "
            "number; an application with on_changed_shuffle_partitions='keep' continues"
        ) from None


_VERSION: Final = re.compile(r"\.*(\d+)(?:_[\w-]+)?\.(?:zip|changelog)(?:\..*)?")
"""Matches the file name of a state version, its checksum, or a temporary file of either."""


def remove_abandoned(files: LocalFiles) -> list[str]:
    """Remove the state of an incomplete micro-batch from a checkpoint on a local disk.

    ``FileSystemBasedCheckpointFileManager``, which writes checkpoints on local disks, does not replace an existing file: it silently
    discards what a second attempt writes under the same name. If the attempts computed different state, as results of asynchronous
    operators can cause, the next start would apply changes of one attempt to the state of another. A start therefore removes the files of the first
    attempt, and this file manager is used only for queries with one attempt per Spark task. Other file systems use Spark's default manager,
    which replaces files.

    Args:
        files: The checkpoint. No query may be running on it.

    Returns:
        The removed paths, relative to the checkpoint.
    """
    planned = max(numbers(files.names("offsets")), default=-1)
    if planned < 0 or planned in numbers(files.names("commits")):
        return []
    removed = []
    for partition in numbers(files.names("state/0")):
        for name in files.names(f"state/0/{partition}"):
            match, path = _VERSION.fullmatch(name), f"state/0/{partition}/{name}"
            if match is not None and int(match[1]) == planned + 1:
                files.local(path).unlink(missing_ok=True)
                removed.append(path)
    return sorted(removed)
