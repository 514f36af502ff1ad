"""The application's wall clock, which the harness moves: decision 0044 gives an application its clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.testing.crash.stream import now_ms

JUMPS_S = (-86_400, -3_600, 3_600, 86_400)
"""How far the clock jumps, in seconds."""


@dataclass(frozen=True)
class JumpingClock:
    """The host's clock, moved by what a file says; crosses to other processes.

    Attributes:
        path: The file.
    """

    path: Path

    def __call__(self) -> int:
        """Return the time, ms since the epoch."""
        return now_ms() + (int(self.path.read_text()) if self.path.exists() else 0)

    def move(self, ms: int) -> None:
        """Let the clock go before or behind that of the host by so many ms."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(str(ms))
        partial.replace(self.path)  # so that nobody reads a half of it
