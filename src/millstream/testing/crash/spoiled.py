"""Spoiled runs: the broker lost data, so they say nothing about the application.

A coordinator may not know a transaction for which partitions still wait, or after a kill the broker may not load the offsets of a
group. The cause is unknown. Such a run is compared as far as it went and reported with the log of the transactions as evidence;
then it is repeated with another seed. If every attempt is spoiled, that is no coincidence, and the last one is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.testing.crash.crash_report import Report

ATTEMPTS: Final = 3
SEEDS_APART: Final = 100


def unspoiled(
    run: Callable[[int, int], Report], seed: int, *, log_report: Callable[[Report], None]
) -> Report:
    """Make a run, and repeat it with another seed if the broker has spoiled it.

    Args:
        run: Makes a run, given a seed and the number of the attempt, from 0.
        seed: The seed of the first attempt; each further attempt adds 100.
        log_report: Called with the report of each spoiled run that is repeated.

    Returns:
        The report of the first attempt that is not spoiled, otherwise that of the third.
    """
    for attempt in range(ATTEMPTS - 1):
        report = run(seed + SEEDS_APART * attempt, attempt)
        if report.verdict != "SPOILED":
            return report
        log_report(report)
    return run(seed + SEEDS_APART * (ATTEMPTS - 1), ATTEMPTS - 1)
