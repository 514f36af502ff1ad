"""Whether a batch costs more when the store is larger: the same updates on a small store and on a hundred times it.

Each store has an application and a process of its own, and is filled by that application. The updates of a batch are of
different keys in both, so that both write as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from bench.processes import run_ours
from bench.stage import Stage

_ROUNDS = 10
_WARMUPS = 3
_TIMEOUT_S = 1_500.0
SMALL_PER_RECORD, LARGE_PER_RECORD, UPDATES_PER_RECORD = 0.05, 5.0, 0.01
"""Sizes for each record of the race: 50,000 and 5,000,000 keys and 10,000 updates for the million of a full run."""


@dataclass(frozen=True)
class StoreRun:
    """Batches on a store of one size.

    Attributes:
        keys: Keys in the store.
        batch_s: Durations of the batches.
        fill_records_per_s: How fast the application filled the store.
        state_bytes: Bytes of its log in Spark's state at the end.
        batches: Phases of the batches, in milliseconds.
        wrong: What is wrong with the outputs of the batches, None if nothing.
    """

    keys: int
    batch_s: Sequence[float]
    fill_records_per_s: float
    state_bytes: int
    batches: Sequence[dict[str, int]]
    wrong: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        return {
            "keys": self.keys,
            "batch_s": {"median": round(median(self.batch_s), 3), "max": round(max(self.batch_s), 3)},
            "fill_records_per_s": round(self.fill_records_per_s),
            "state_bytes": self.state_bytes,
            "batches_ms": list(self.batches),
        }


@dataclass(frozen=True)
class StoreSizeResult:
    """The same batches on two stores.

    Attributes:
        updates: Updates of a batch.
        small: On the small store.
        large: On the large one.
    """

    updates: int
    small: StoreRun
    large: StoreRun

    @property
    def ratio(self) -> float:
        """How many times as long the median batch takes on the large store."""
        return median(self.large.batch_s) / median(self.small.batch_s)

    @property
    def wrong(self) -> list[str]:
        """What was wrong with outputs."""
        return [
            f"store-size, {run.keys:,} keys: {run.wrong}" for run in (self.small, self.large) if run.wrong
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        mean_ratio = mean(self.large.batch_s) / mean(self.small.batch_s)
        return {
            "updates": self.updates,
            "ratio": {"median": round(self.ratio, 3), "mean": round(mean_ratio, 3)},
            "wrong": self.wrong,
            "small": self.small.as_json(),
            "large": self.large.as_json(),
        }


def store_size(stage: Stage, keys: int | None = None) -> StoreSizeResult:
    """Measure batches on a small and on a large store.

    Args:
        stage: Broker and scratch directory.
        keys: Keys of the large store. None: in proportion to the records of the race.
    """
    updates = max(int(stage.records * UPDATES_PER_RECORD), 1)
    small = max(int(stage.records * SMALL_PER_RECORD), updates)
    large = max(keys or int(stage.records * LARGE_PER_RECORD), updates)
    return StoreSizeResult(updates, _run(stage, small, updates), _run(stage, large, updates))


def _run(stage: Stage, keys: int, updates: int) -> StoreRun:
    arguments = {
        "servers": stage.kafka.bootstrap_servers,
        "source": stage.topic("store-input"),
        "sink": stage.topic("store-output"),
        "keys": keys,
        "updates": updates,
        "rounds": _ROUNDS,
        "warmups": _WARMUPS,
    }
    figures = run_ours("store-size", arguments, scratch=stage.directory("store"), timeout_s=_TIMEOUT_S)
    return StoreRun(**figures)
