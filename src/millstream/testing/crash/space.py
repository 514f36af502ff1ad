"""A disk that can be filled: a small separate file system with checkpoint, state and a file that takes up the free space."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import final

from millstream.testing.crash.processes import CrashTestError

_LARGEST = 4 << 30
_BLOCKS = (1 << 20, 1 << 12, 1)


@final
class Space:
    """The file system of a directory. Use it from one thread.

    Raises:
        CrashTestError: If more than 4 GiB are free: it is not a small file system, and filling it would affect others.
    """

    def __init__(self, directory: Path) -> None:
        stats = os.statvfs(directory)
        if (free := stats.f_bavail * stats.f_frsize) > _LARGEST:
            raise CrashTestError(
                f"{directory} has {free >> 20:,} MiB free; a disk that the harness fills is a file system of its own, as "
                f"'mount -t tmpfs -o size=256m tmpfs {directory}' makes one"
            )
        self._filler = directory / "filler"

    def fill(self) -> None:
        """Fill the free space, down to single bytes."""
        with self._filler.open("ab", buffering=0) as file:
            for size in _BLOCKS:
                while _written(file.fileno(), bytes(size)):
                    pass

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


def _written(file: int, data: bytes) -> bool:
    try:
        return os.write(file, data) > 0
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return False
        raise
