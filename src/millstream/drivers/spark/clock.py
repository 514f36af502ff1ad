"""The wall clock of an application: what gives each micro-batch its time.

It is read once per micro-batch, by the planner in Spark's driver; from there the time travels in the offset (decision 0007).
A *clock* is any function of no arguments that gives milliseconds since the epoch. It crosses to the planner's process as
cloudpickle, so one that somebody else moves reads the time from where both can reach it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from millstream.core.runtime.batch_plan import WallClock

_TOLERANCE_MS: Final = 1_000
"""Clocks that differ by less are the same."""

Clock = Callable[[], int]


def host_clock() -> int:
    """Read the clock of this host."""
    return int(time.time() * 1000)  # noqa: TID251 - the one reading of the wall clock


def wall_clock(clock: Clock) -> WallClock:
    """Read a clock, and compare it with this host's clock."""
    now_ms, host_ms = clock(), host_clock()
    ahead_ms = now_ms - host_ms
    return WallClock(now_ms, ahead_ms if abs(ahead_ms) >= _TOLERANCE_MS else 0)
