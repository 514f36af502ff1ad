"""The plan of a run: what is killed, and at which points of the stream, all from one seed.

A *kill point* is a place in the input and a delay: the kill comes so many milliseconds after the group's committed offsets
have reached that place. Places are spread over the stream, so that there is progress between two kills, and delays are as
long as a micro-batch or two, so that kills fall into all of its phases. Transactions are short, so some kills also wait for
an open one. Victims are taken in turn, in shuffled order, so that a few kills meet as many different ones as possible.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.testing.crash.app import Guarantee

Target = Literal[
    "program", "host", "disk", "driver", "executor", "worker", "station", "broker", "transaction"
]
"""What is killed with SIGKILL.

``program``
    The Python program and everything it has started, at once, as the end of a container does.
``host``
    The same, and the local copies of the stores are gone, as if it came up again on another host.
``disk``
    The same, and the checkpoint is gone, too: all there is left is in Kafka.
``driver``
    The driver's JVM alone.
``executor``
    The JVM of one executor. Such a run uses ``local-cluster``; all others use threads of the driver's JVM.
``worker``
    One Python worker.
``station``
    The process that makes the calls of asynchronous operators beside an executor.
``broker``
    The broker, at any moment.
``transaction``
    The broker, always in the middle of an open transaction.
"""

TARGETS: tuple[Target, ...] = get_args(Target)

_MAX_DELAY_MS = 1_200
_LAST_PLACE = 0.85
_IN_TRANSACTION = 0.5


@dataclass(frozen=True)
class KillPoint:
    """One kill to come.

    Attributes:
        target: What is killed.
        position: The number of input records that must have been processed and committed.
        delay_ms: How long after that.
        choice: From 0 to 1: which one, if there are several.
        in_transaction: Whether it then waits until a transaction is open.
    """

    target: Target
    position: int
    delay_ms: int
    choice: float
    in_transaction: bool = False


def possible_targets(guarantee: Guarantee, *, rebuilds: bool, calls: bool) -> tuple[Target, ...]:
    """Give the targets that an application must stand.

    Args:
        guarantee: Only exactly once has transactions, and equal results of an application that has been rebuilt.
        rebuilds: Whether all its stores have changelog topics.
        calls: Whether it has asynchronous operators; without them there is no station.
    """
    impossible: set[Target] = set() if guarantee == "exactly_once" else {"transaction", "disk"}
    if not rebuilds:
        impossible.add("disk")
    if not calls:
        impossible.add("station")
    return tuple(target for target in TARGETS if target not in impossible)


def plan_kills(
    kills: int, targets: Sequence[Target], records: int, seed: int, *, transactions: bool = False
) -> tuple[KillPoint, ...]:
    """Decide on the kills of a run.

    Args:
        kills: How many.
        targets: What may be killed.
        records: The number of records of the workload.
        seed: Equal arguments give equal plans.
        transactions: Whether there are any; then every second kill or so comes while one is open.

    Returns:
        The kills in the order of their positions.

    Example:
        >>> [point.target for point in plan_kills(3, ["broker", "worker"], 1_000, seed=1)]
        ['broker', 'worker', 'broker']
    """
    chance = random.Random(f"kills {seed}")
    order: list[Target] = []
    while len(order) < kills:
        order += chance.sample(targets, len(targets))
    stretch = records * _LAST_PLACE / max(kills, 1)
    return tuple(
        KillPoint(
            target,
            int(stretch * (number + chance.uniform(0.2, 1))),
            chance.randrange(_MAX_DELAY_MS),
            chance.random(),
            target == "transaction" or (transactions and chance.random() < _IN_TRANSACTION),
        )
        for number, target in enumerate(order[:kills])
    )
