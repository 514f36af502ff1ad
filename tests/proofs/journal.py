"""A journal of calls: a file to which the called function itself writes a line at each begin and end.

The journal is independent evidence for the proofs: Millstream does not write it, and it survives every killed process. Each event is
one line of 32 bytes, appended by a single write. So lines of different processes never mix, and SIGKILL tears none: the kernel can
interrupt a write only at a page boundary, and no line crosses one. Lines are in the order of the events: a begin is written before
the call does anything, and an end afterwards.

Lines are binary, so that numpy reads two million of them quickly, without parsing.
"""

from __future__ import annotations

import os
import struct
import time
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

BEGIN, END, FAILED = 1, 2, 3
"""The kinds of lines: a call begins, ends with a result, ends without one."""

LINE = np.dtype(
    [
        ("kind", "<u2"),
        ("attempt", "<u2"),
        ("pid", "<u4"),
        ("number", "<i8"),
        ("at_us", "<i8"),
        ("note", "<i8"),
    ]
)
"""A line: kind, attempt (according to the function), process, number of the record, microseconds since the epoch, and a number
whose meaning the function defines."""

_PACK = struct.Struct("<HHIqqq").pack

Lines = npt.NDArray[np.void]
"""Lines in the order in which they were written; ``lines["number"]`` and so on are the columns."""


class Journal:
    """Writes lines, from any process and thread. It can be pickled, which copies only the path.

    Args:
        path: The file; it is created when the first line is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def begin(self, number: int, *, attempt: int = 1, note: int = 0) -> None:
        """Write that a call for a record begins."""
        _write(self._path, BEGIN, number, attempt, note)

    def end(self, number: int, *, attempt: int = 1, note: int = 0) -> None:
        """Write that a call has ended with a result."""
        _write(self._path, END, number, attempt, note)

    def failed(self, number: int, *, attempt: int = 1, note: int = 0) -> None:
        """Write that a call has ended without a result."""
        _write(self._path, FAILED, number, attempt, note)


def _write(path: str, kind: int, number: int, attempt: int, note: int) -> None:
    line = _PACK(kind, attempt, os.getpid(), number, time.time_ns() // 1000, note)
    os.write(_descriptor(path), line)


@cache
def _descriptor(path: str) -> int:
    """Return the descriptor of a file in this process; it stays open as long as the process lives."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def read(path: Path, start: int = 0) -> Lines:
    """Read all current lines.

    Args:
        path: The file; if it does not exist, there are no lines.
        start: How many lines to skip at the beginning.
    """
    if not path.exists():
        return np.empty(0, LINE)
    with path.open("rb") as file:
        file.seek(start * LINE.itemsize)
        data = file.read()
    return np.frombuffer(data[: len(data) // LINE.itemsize * LINE.itemsize], LINE)


def lines_of(lines: Lines, kind: int) -> Lines:
    """Return the lines of one kind."""
    return lines[lines["kind"] == kind]


def counts(lines: Lines, kind: int, size: int) -> npt.NDArray[np.int64]:
    """Count the lines of one kind for each record.

    Args:
        lines: Some lines.
        kind: The kind.
        size: How many records there are, numbered from 0.
    """
    return np.bincount(lines_of(lines, kind)["number"], minlength=size)


def open_calls(lines: Lines, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each line how many calls of its group are open after it.

    Args:
        lines: All lines, but none of processes that were killed, because their last calls have no end.
        groups: The group of each line: its key, for example, or 0 for all.

    Example:
        >>> lines = np.zeros(4, LINE)
        >>> lines["kind"] = [BEGIN, BEGIN, FAILED, BEGIN]
        >>> open_calls(lines, np.array([7, 8, 7, 8])).tolist()
        [1, 1, 0, 2]
    """
    order = np.argsort(groups, kind="stable")
    step = np.where(lines["kind"] == BEGIN, 1, -1)[order]
    total = np.cumsum(step)
    ordered = groups[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(lines) else np.empty(0, np.int64)
    before = np.repeat((total - step)[first], np.diff(np.r_[first, len(lines)]))
    found = np.empty(len(lines), np.int64)
    found[order] = total - before
    return found


def overlaps(lines: Lines, groups: npt.NDArray[np.int64]) -> int:
    """Count the calls that began while another one of their group was open: see ``open_calls``."""
    return int(((open_calls(lines, groups) > 1) & (lines["kind"] == BEGIN)).sum())
