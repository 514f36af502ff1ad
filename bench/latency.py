"""How long a few records take through the whole pipeline, and how long their micro-batch takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.processes import run_ours
from bench.stage import Stage

_ROUNDS = 30
_WARMUPS = 5
_RECORDS = 10
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class LatencyResult:
    """Thirty times ten records through ``count``.

    Attributes:
        visible_s: From the acknowledgement of the input to the last output in a consumer's hands.
        batch_s: The micro-batches, planning and commits included.
        batches: Their phases, in milliseconds.
    """

    visible_s: Sequence[float]
    batch_s: Sequence[float]
    batches: Sequence[dict[str, int]]

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        return {
            "visible_s": {"median": round(median(self.visible_s), 3), "max": round(max(self.visible_s), 3)},
            "batch_s": {"median": round(median(self.batch_s), 3), "max": round(max(self.batch_s), 3)},
            "rounds": len(self.visible_s),
            "batches_ms": list(self.batches),
        }


def latency(stage: Stage) -> LatencyResult:
    """Measure the latency of few records."""
    arguments = {
        "servers": stage.kafka.bootstrap_servers,
        "source": stage.topic("latency-input"),
        "sink": stage.topic("latency-output"),
        "rounds": _ROUNDS,
        "warmups": _WARMUPS,
        "records": _RECORDS,
    }
    figures = run_ours("latency", arguments, scratch=stage.directory("latency"), timeout_s=_TIMEOUT_S)
    return LatencyResult(figures["visible_s"], figures["batch_s"], figures["batches"])
