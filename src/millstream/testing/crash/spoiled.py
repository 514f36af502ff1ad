"""Spoiled runs: those in which the broker forgot something, so that they say nothing about the application.

Partitions may wait for a transaction that its coordinator does not know any more, or the broker may not load the offsets of a
group after it was killed. Why is not known, so such a run is compared as far as it came and told, with the log of the transactions as
evidence, before it is made again with another seed. That it happens to every attempt is no coincidence any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.testing.crash.report import Report

ATTEMPTS: Final = 3
SEEDS_APART: Final = 100


def unspoiled(run: Callable[[int, int], Report], seed: int, *, tell: Callable[[Report], None]) -> Report:
    """Make a run, again with another seed if the broker has spoiled it.

    Args:
        run: Makes the run, of a seed and the number of the attempt, from 0.
        seed: Seed of the first attempt; each further one is 100 seeds on.
        tell: Hears of each run that is made again.

    Returns:
        The report of the first attempt that the broker did not spoil, or that was wrong; else of the third.
    """
    for attempt in range(ATTEMPTS - 1):
        report = run(seed + SEEDS_APART * attempt, attempt)
        if report.verdict != "SPOILED":
            return report
        tell(report)
    return run(seed + SEEDS_APART * (ATTEMPTS - 1), ATTEMPTS - 1)
