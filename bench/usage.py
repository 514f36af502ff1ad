"""Usage: what one side of a race took of the machine, and how much of it others took meanwhile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Usage:
    """What a side took, from the start of its first process to its last record or its end.

    Attributes:
        processor_s: Core-seconds of all its processes, start included.
        idle: Share of the machine's core-seconds that no process used.
        others: Share that was taken by neither the side, nor the broker, nor the benchmark. Above 0.05 the run was disturbed.
        gc_s: How long its JVM collected garbage, seconds.
        broker_s: Core-seconds of the broker, and of the benchmark, which waits.
    """

    processor_s: float
    idle: float
    others: float
    gc_s: float
    broker_s: float

    def as_json(self) -> dict[str, float]:
        """Return the figures, rounded."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


class Meter:
    """Measures from when it is made.

    Args:
        known: Process ids of the broker and the benchmark.
    """

    def __init__(self, known: Sequence[int]) -> None:
        self._known = [psutil.Process(pid) for pid in known]
        self._before = self._read()

    def used(self, processor_s: float, gc_s: float) -> dict[str, Any]:
        """Return the usage as JSON.

        Args:
            processor_s: Core-seconds of the side.
            gc_s: How long its JVM collected garbage, seconds.
        """
        taken, busy, idle = (now - then for now, then in zip(self._read(), self._before))
        whole = busy + idle
        others = max(0.0, busy - taken - processor_s) / whole
        return Usage(processor_s, idle / whole, others, gc_s, taken).as_json()

    def _read(self) -> tuple[float, float, float]:
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return sum(sum(each.cpu_times()[:2]) for each in self._known), sum(machine[:8]) - idle, idle


def children_s() -> float:
    """Return the core-seconds of the children of this process that have ended."""
    times = os.times()
    return times.children_user + times.children_system
