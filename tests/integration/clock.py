"""A wall clock that a test advances, and that an application in other processes reads."""

from __future__ import annotations

from pathlib import Path

from .helpers import eventually


class HandClock:
    """The clock of an application. Its time is in a file, and the number of readings is in a second file beside it.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._now = path
        self._readings = path.with_suffix(".readings")
        write(self._now, 0)
        write(self._readings, 0)

    def __call__(self) -> int:
        write(self._readings, read(self._readings) + 1)
        return read(self._now)

    def set(self, now_ms: int) -> None:
        write(self._now, now_ms)

    def await_reading(self) -> None:
        """Wait until the application begins to plan a micro-batch, which then includes everything that happened before."""
        before = read(self._readings)
        eventually(lambda: read(self._readings) > before, "the clock to be read", within_s=120)


def read(path: Path) -> int:
    return int(path.read_text())


def write(path: Path, number: int) -> None:
    """Write a number atomically."""
    partial = path.with_suffix(f"{path.suffix}.partial")
    partial.write_text(str(number))
    partial.replace(path)
