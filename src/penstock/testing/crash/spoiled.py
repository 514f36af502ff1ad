"""Spoiled runs: those in which the broker forgot something, so that they say nothing about the application.

A broker that is killed while it ends a transaction sometimes forgets it (KIP-664), and one that comes up on a busy machine may give
up loading the offsets of its groups. Such a run is neither right nor wrong. So it is not counted, and the run is made again with
another seed. A transaction is forgotten by about one in twelve brokers killed in one; that it happens to every attempt is
no coincidence any more, and is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.testing.crash.processes import BrokerFaultError
from penstock.testing.crash.report import Report

ATTEMPTS: Final = 3
SEEDS_APART: Final = 100


def unspoiled(
    run: Callable[[int, int], Report], seed: int, *, tell: Callable[[BrokerFaultError], None]
) -> Report:
    """Make a run, again with another seed if the broker has spoiled it.

    Args:
        run: Makes the run, of a seed and the number of the attempt, from 0.
        seed: Seed of the first attempt; each further one is 100 seeds on.
        tell: Hears of each run that was spoiled.

    Returns:
        The report of the first attempt that the broker did not spoil.

    Raises:
        BrokerFaultError: If it has spoiled three in a row.
    """
    for attempt in range(ATTEMPTS):
        try:
            return run(seed + SEEDS_APART * attempt, attempt)
        except BrokerFaultError as fault:
            tell(fault)
            spoiled = fault
    raise spoiled
