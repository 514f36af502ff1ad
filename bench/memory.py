"""Whether the Python workers stay as large as they are: ten times the race's records through one application.

The figure is the peak of the largest worker's resident memory in a round of records. A mean would hide one worker that
grows behind others that Spark has just started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.processes import run_ours
from bench.stage import Stage

_ROUNDS = 10
_EARLY = 2
_TIMEOUT_S = 1_500.0


@dataclass(frozen=True)
class MemoryResult:
    """Memory of Python workers, round by round.

    Attributes:
        records: Records of a round.
        peak_mib: Largest resident memory of a worker during each round.
        mean_mib: Mean of the workers at the end of each round.
        workers: Number of workers at the end of each round.
        trouble: What is wrong with the output, None if nothing.
    """

    records: int
    peak_mib: Sequence[float]
    mean_mib: Sequence[float]
    workers: Sequence[int]
    trouble: str | None = None

    @property
    def early_mib(self) -> float:
        """The peak in the second round."""
        return self.peak_mib[_EARLY - 1]

    @property
    def late_mib(self) -> float:
        """The peak in the last round."""
        return self.peak_mib[-1]

    @property
    def ratio(self) -> float:
        """How many times as large the largest worker is in the last round as in the second."""
        return self.late_mib / self.early_mib

    @property
    def wrong(self) -> list[str]:
        """What was wrong with the output."""
        return [f"memory: {self.trouble}"] if self.trouble else []

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        return {
            "records": self.records * len(self.peak_mib),
            "ratio": round(self.ratio, 3),
            "wrong": self.wrong,
            "peak_mib": [round(mib) for mib in self.peak_mib],
            "mean_mib": [round(mib) for mib in self.mean_mib],
            "workers": list(self.workers),
        }


def memory(stage: Stage) -> MemoryResult:
    """Watch the workers over ten rounds of records."""
    arguments = {
        "servers": stage.kafka.bootstrap_servers,
        "source": stage.topic("memory-input"),
        "sink": stage.topic("memory-output"),
        "records": stage.records,
        "keys": stage.keys,
        "rounds": _ROUNDS,
    }
    figures = run_ours("memory", arguments, scratch=stage.directory("memory"), timeout_s=_TIMEOUT_S)
    return MemoryResult(
        figures["records"], figures["peak_mib"], figures["mean_mib"], figures["workers"], figures["wrong"]
    )
