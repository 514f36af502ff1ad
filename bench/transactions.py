"""What exactly once costs: the same batches of 100,000 records, with and without transactions.

Both guarantees take turns in one process, each time with a state and a topic of its own. The first batches of a turn warm
things up and do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.processes import run_ours
from bench.stage import Stage

GUARANTEES = ("at_least_once", "exactly_once")
_TIMEOUT_S = 1_500.0
_BATCHES_PER_RACE = 10


@dataclass(frozen=True)
class TransactionResult:
    """Durations of batches under each guarantee.

    Attributes:
        records: Records of a batch.
        batch_s: Per guarantee the durations of all batches that count, in seconds.
        trouble: What is wrong with the output, None if nothing.
    """

    records: int
    batch_s: dict[str, Sequence[float]]
    trouble: str | None = None

    @property
    def medians(self) -> tuple[float, float]:
        """Median duration of a batch at least once and exactly once, seconds."""
        first, second = (median(self.batch_s[guarantee]) for guarantee in GUARANTEES)
        return first, second

    @property
    def ratio(self) -> float:
        """How many times as long a batch takes exactly once."""
        without, with_transactions = self.medians
        return with_transactions / without

    @property
    def wrong(self) -> list[str]:
        """What was wrong with the output."""
        return [f"transactions: {self.trouble}"] if self.trouble else []

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        return {
            "records": self.records,
            "ratio": round(self.ratio, 3),
            "wrong": self.wrong,
            "batch_s": {guarantee: [round(s, 3) for s in took] for guarantee, took in self.batch_s.items()},
        }


def transactions(stage: Stage, source: str, rounds: int) -> TransactionResult:
    """Time batches of a tenth of the race's records under both guarantees, in turns.

    Args:
        stage: Broker and scratch directory.
        source: The race's topic, which is full.
        rounds: Turns per guarantee.
    """
    records = stage.records // _BATCHES_PER_RACE
    sinks = [
        {guarantee: stage.topic(f"{guarantee}-{number}") for guarantee in GUARANTEES}
        for number in range(rounds)
    ]
    arguments = {
        "servers": stage.kafka.bootstrap_servers,
        "source": source,
        "sinks": sinks,
        "records": stage.records,
        "batch": records,
    }
    found = run_ours("transactions", arguments, scratch=stage.scratch, timeout_s=_TIMEOUT_S)
    return TransactionResult(records, found["batch_s"], found["wrong"])
