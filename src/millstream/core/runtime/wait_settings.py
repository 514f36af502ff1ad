"""Wait settings: how long tasks wait for records of empty inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WaitSettings:
    """How long tasks wait for empty inputs, and how much they buffer in the meantime.

    Attributes:
        idle_ms: How long a task waits for an empty input without lag; -1 does not wait.
    """

    idle_ms: int = 0
    records: int = 50_000
    size: int = 16_000_000
