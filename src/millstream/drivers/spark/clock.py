"""The wall clock of an application, which sets the time of each micro-batch.

The planner reads the clock once per micro-batch in Spark's driver. The offset carries the time to all other processes (decision 0007).
A *clock* is any function without arguments that returns milliseconds since the epoch. It is sent to the planner's process with
cloudpickle. If the user moves a clock, the time must be stored where both processes can read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from millstream.core.runtime.batch_plan import WallClock

_TOLERANCE_MS: Final = 1_000
"""Clocks that differ by less are considered equal."""

Clock = Callable[[], int]


def host_clock() -> int:
    return int(time.time() * 1000)  # noqa: TID251 - the one reading of the wall clock


def wall_clock(clock: Clock) -> WallClock:
    """Read a clock and compare it with this host's clock."""
    now_ms, host_ms = clock(), host_clock()
    ahead_ms = now_ms - host_ms
    return WallClock(now_ms, ahead_ms if abs(ahead_ms) >= _TOLERANCE_MS else 0)
