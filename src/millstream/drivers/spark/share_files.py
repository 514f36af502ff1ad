"""Share files: a key-range task's share of divided state, until its first micro-batch has loaded the share into Spark's state.

A file contains the segments of the task's log with their numbers, then the manifest, then a checksum of everything. Numbers are big
endian:

    number (8) | length (8) | bytes      for each segment, and for the manifest with the number -1
    -2 (8) | crc32 (8)

A task without a part of the divided state has a file without segments and manifest, so that a missing file is noticed.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId

MANIFEST: Final = -1
DIRECTORY: Final = "divided"
"""Directory of the shares in a checkpoint."""
_END: Final = -2
_HEAD: Final = struct.Struct(">qq")


class ShareWriter:
    """Writes the share of one task. The file is open only during writes, because there may be thousands of files."""

    def __init__(self, directory: Path, task: TaskId) -> None:
        self._path = directory / str(task)
        self._checksum = 0

    def add(self, number: int, data: bytes) -> None:
        """Append a segment or the manifest."""
        with self._path.open("ab") as file:
            for part in (_HEAD.pack(number, len(data)), data):
                self._checksum = zlib.crc32(part, self._checksum)
                file.write(part)

    def finish(self) -> None:
        with self._path.open("ab") as file:
            file.write(_HEAD.pack(_END, self._checksum))
            file.flush()
            os.fsync(file.fileno())


def read_share(directory: Path, task: TaskId) -> Iterator[tuple[int, bytes]]:
    """Read the share of a task: numbers and bytes of its segments, followed by the manifest, if any.

    Raises:
        StoreError: If the file is missing or damaged. Damage may be detected only after the last part was returned.
    """
    path, checksum = directory / str(task), 0
    try:
        with path.open("rb") as file:
            while True:
                number, length = _HEAD.unpack(head := file.read(_HEAD.size))
                if number == _END:
                    if length != checksum:
                        raise _damaged(path, task)
                    return
                data = _read_exactly(file, length)
                checksum = zlib.crc32(data, zlib.crc32(head, checksum))
                yield number, data
    except (OSError, struct.error) as error:
        raise _damaged(path, task) from error


def _read_exactly(file: IO[bytes], length: int) -> bytes:
    """Read a part of a file. A damaged length may be negative, or larger than the memory.

    Raises:
        OSError: If the file has fewer bytes.
    """
    if not 0 <= length <= os.fstat(file.fileno()).st_size:
        raise OSError(f"a part of {length} bytes is longer than the file")
    return file.read(length)


def _damaged(path: Path, task: TaskId) -> StoreError:
    return StoreError(
        f"task {task} needs its share of the state that this start divided among key ranges, but {path} is missing or damaged. "
        "Restore the whole checkpoint from a copy that was made at one time"
    )
