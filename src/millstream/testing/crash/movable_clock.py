"""The application's wall clock, which the harness can move (decision 0044: an application takes its clock as an argument)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.testing.crash.stream import now_ms

JUMPS_S = (-86_400, -3_600, 3_600, 86_400)
"""The possible jumps of the clock, in seconds."""


@dataclass(frozen=True)
class JumpingClock:
    """The host's clock plus an offset in ms from a file; it can be pickled for other processes."""

    path: Path

    def __call__(self) -> int:
        return now_ms() + (int(self.path.read_text()) if self.path.exists() else 0)

    def move(self, ms: int) -> None:
        """Set the offset of the clock from that of the host, in ms."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(str(ms))
        partial.replace(self.path)  # atomic: a reader never sees half of the number
