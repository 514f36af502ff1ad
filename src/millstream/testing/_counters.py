"""What a test driver counts, over all micro-batches and restarts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from millstream.core.engine.step_outcome import Outcome

CALLS: Final = {"calls_settled": "settled", "calls_retried": "retries", "calls_dead_lettered": "dead_letters"}
"""The counted fields of a task's calls, by the name of their metric."""


@dataclass
class Counters:
    """Numbers since the start of the driver.

    Attributes:
        dropped: Dropped records, by reason.
        enforced: Records processed although an empty input might have brought an earlier one.
        calls: Calls by outcome, under the names of their metrics.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    processed: int = 0
    enforced: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        metrics = outcome.metrics
        self.dropped.update(metrics.dropped)
        self.processed += metrics.processed
        self.enforced += metrics.enforced
        self.counted.update(metrics.counted)
        for figures in outcome.calls.values():
            self.calls.update({name: getattr(figures, figure) for name, figure in CALLS.items()})
