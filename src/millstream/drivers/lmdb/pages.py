"""Mapped pages: what LMDB's memory map counts as resident memory of this process, and giving it back.

LMDB reads through a memory map of its file, so every page that was ever touched stays in the process's resident set until the
system needs the memory. To the system such pages are free; to a limit on the process (a container, Spark's executor memory
overhead) they are not. ``madvise(MADV_DONTNEED)`` on a shared mapping of a file takes the pages out of the process and leaves
them in the page cache: the next access maps them again without reading the disk. It is allowed at any moment, also in the
middle of a transaction. It has to be: the system maps the neighbours of a page that is touched too, sixteen at a time, so a few
thousand keys at random are the whole file.

Linux only. Elsewhere nothing is given back before the environment is closed.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

from millstream.drivers.lmdb.rows import DATA_FILE

CHECKED_EVERY: Final = 256
"""After how many rows whoever reads or writes looks at how many pages are resident."""

LINUX: Final = sys.platform.startswith("linux")
_PAGE: Final = mmap.PAGESIZE
_MAPS: Final = "/proc/self/maps"
_STATM: Final = "/proc/self/statm"
_LIBC: Final = ctypes.CDLL(None)


class MappedPages:
    """The mapped pages of all environments of this process. One per process, used by one thread.

    Args:
        most_bytes: How much may be resident before it is given back.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._least = _file_pages()

    def trim(self) -> bool:
        """Give the pages back if more than allowed are resident; tell whether that was done."""
        now = _file_pages()
        self._least = min(self._least, now)
        if (now - self._least) * _PAGE <= self.most_bytes:
            return False
        for start, end in _mappings():
            _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
        self._least = _file_pages()
        return True


def _file_pages() -> int:
    """Give the resident pages of this process that belong to files; libraries are among them."""
    if not LINUX:
        return 0
    with open(_STATM, "rb") as told:
        return int(told.read().split()[2])


def _mappings() -> list[tuple[int, int]]:
    """Give the address ranges at which data files of LMDB are mapped."""
    found = []
    with open(_MAPS) as told:
        for line in told:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].removesuffix(" (deleted)").endswith(f"/{DATA_FILE}"):
                start, _, end = fields[0].partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found


PAGES: Final = MappedPages(most_bytes=192 << 20)
"""Those of this process; how much they may take is said when a copy is opened."""
