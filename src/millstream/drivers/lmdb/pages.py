"""Mapped pages: the resident memory of LMDB's memory map, and how it is released.

LMDB reads through a memory map of its file, so every accessed page remains in the process's resident set until the system needs
the memory. The system considers such pages free, but a limit on the process (a container, Spark's executor memory overhead) does
not. ``madvise(MADV_DONTNEED)`` on a shared mapping of a file removes the pages from the process and leaves them in the page
cache: the next access maps them again without reading the disk. The call is allowed at any time, even during a transaction. It
is necessary because the system maps sixteen neighbouring pages at once, so a few thousand random keys map the whole file.

Linux only. On other systems, memory is released when the environment is closed.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

from millstream.drivers.lmdb.row_encoding import DATA_FILE

CHECKED_EVERY: Final = 256
"""Number of rows read or written between two checks of the resident pages."""

LINUX: Final = sys.platform.startswith("linux")
_PAGE: Final = mmap.PAGESIZE
_MAPS: Final = "/proc/self/maps"
_STATM: Final = "/proc/self/statm"
_LIBC: Final = ctypes.CDLL(None)


class MappedPages:
    """The mapped pages of all environments of this process. One per process, used by one thread."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._least = _file_pages()

    def trim(self) -> None:
        """Release the pages if they exceed the limit."""
        now = _file_pages()
        self._least = min(self._least, now)
        if (now - self._least) * _PAGE <= self.most_bytes:
            return
        for start, end in _mappings():
            _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
        self._least = _file_pages()


def _file_pages() -> int:
    """Return the number of resident pages of this process that are backed by files, including libraries."""
    if not LINUX:
        return 0
    with open(_STATM, "rb") as file:
        return int(file.read().split()[2])


def _mappings() -> list[tuple[int, int]]:
    ranges = []
    with open(_MAPS) as file:
        for line in file:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].removesuffix(" (deleted)").endswith(f"/{DATA_FILE}"):
                start, _, end = fields[0].partition("-")
                ranges.append((int(start, 16), int(end, 16)))
    return ranges


PAGES: Final = MappedPages(most_bytes=192 << 20)
"""The mapped pages of this process. Opening a copy sets the limit."""
