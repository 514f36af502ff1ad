"""The state of a task by itself: how fast it is restored, what it takes on disk, and whether its memory is bounded.

Each measurement is a process without Spark; see ``bench.statelogs``. Sizes are for each record of the race.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from bench.processes import run_for_json
from bench.stage import Stage

PARTS = ("restore", "space", "big-state")
ENGINES = ("lmdb", "rocksdb")
RESTORE_PER_RECORD, SPACE_PER_RECORD, BIG_PER_RECORD = 3, 0.5, 20
"""Keys for each record of the race: 3 million, half a million and 20 million for the million of a full run."""
MEMORY_BYTES = 256 << 20
_ROUNDS = {"space": 30, "big-state": 5}
_UPDATES_PER_RECORD = 0.1
_TIMEOUT_S = 1_500.0
RESTORE_BAR, SPACE_BAR, MEMORY_BAR = 1_000_000, 2.5, 1.0


@dataclass(frozen=True)
class StateResult:
    """What was measured of one engine.

    Attributes:
        part: ``restore``, ``space`` or ``big-state``.
        figures: The output of the process.
    """

    part: str
    figures: dict[str, Any]

    @property
    def figure(self) -> float:
        """Records per second from nothing; the most that log or copy took of the live data; memory in parts of the bound."""
        figures = self.figures
        if self.part == "restore":
            return float(figures["nothing_records_per_s"])
        if self.part == "space":
            return float(max(*figures["log"], *figures["copy"]))
        most = max(figures[f"{doing}_bytes"] for doing in ("restore", "batch", "read"))
        return float(most / figures["bound_bytes"])

    @property
    def row(self) -> tuple[str, str, bool, str, str]:
        """What was measured, the figure, whether it meets its bar, the bar, and a detail."""
        figures, figure = self.figures, self.figure
        subject = f"{self.part}, {figures['engine']}, {figures['records']:,} keys of 100 bytes"
        if self.part == "restore":
            stale = f"stale: {figures['stale_records']:,} records in {figures['stale_s']:.2f} s"
            return subject, f"{figure:,.0f}/s", figure >= RESTORE_BAR, f">= {RESTORE_BAR:,}/s", stale
        if self.part == "space":
            most = f"log {max(figures['log']):.2f}, copy {max(figures['copy']):.2f} of the live data"
            return subject, f"{figure:.2f} x", figure <= SPACE_BAR, f"<= {SPACE_BAR} x", most
        rates = (
            f"restored at {figures['restore_records_per_s']:,.0f}/s, read at {figures['reads_per_s']:,.0f}/s"
        )
        return subject, f"{figure:.2f} of the bound", figure <= MEMORY_BAR, f"<= {MEMORY_BAR}", rates


def states(stage: Stage, part: str) -> list[StateResult]:
    """Measure a part with every engine that outlives its process."""
    return [_run(stage, part, engine) for engine in ENGINES]


def _run(stage: Stage, part: str, engine: str) -> StateResult:
    share = {"restore": RESTORE_PER_RECORD, "space": SPACE_PER_RECORD, "big-state": BIG_PER_RECORD}[part]
    arguments: dict[str, Any] = {
        "records": max(int(stage.records * share), 1000),
        "engine": engine,
        "memory_bytes": MEMORY_BYTES,
    }
    if part in _ROUNDS:
        arguments["rounds"] = _ROUNDS[part]
    if part == "big-state":
        arguments["updates"] = max(int(stage.records * _UPDATES_PER_RECORD), 1)
    command = [sys.executable, "-m", "bench.statelogs", part, json.dumps(arguments)]
    return StateResult(part, run_for_json(command, scratch=stage.directory(part), timeout_s=_TIMEOUT_S))
