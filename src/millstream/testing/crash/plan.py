"""The plan of a run: what is killed, stopped or slowed, and at which points of the stream, all from one seed.

A *kill point* is a place in the input and a delay: the kill comes so many milliseconds after the group's committed offsets
have reached that place. Places are spread over the stream, so that there is progress between two kills, and delays are as
long as a micro-batch or two, so that kills fall into all of its phases. Transactions are short, so some kills also wait for
an open one. Victims are taken in turn, in shuffled order, so that a few kills meet as many different ones as possible.

A victim that is not killed is *stopped*: SIGSTOP, some seconds, SIGCONT, as a suspended machine or a long collection of garbage
stops it. Or it is *slowed*: stopped nine tenths of that time, in pieces. A *double fault* kills once more before the application has come to itself: while it starts, restores, or sends its
micro-batch again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from millstream.testing.crash.app import Guarantee

Target = Literal[
    "program",
    "host",
    "disk",
    "driver",
    "executor",
    "worker",
    "station",
    "broker",
    "transaction",
    "network",
    "clock",
    "main",
    "task",
    "planner",
    "commit",
    "space",
]
"""What is killed with SIGKILL, or broken.

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
``network``
    All connections of the application with the brokers, at once.
``clock``
    The application's wall clock: it jumps, by an hour or a day, ahead or back.
``main``
    The Python program alone, without what it has started.
``task``, ``planner``, ``commit``
    One Python worker of a kind: of tasks, of the planner, of the sink's commit.
``space``
    The disk of checkpoint and local copies: it is full until the application has ended.
"""

TARGETS: tuple[Target, ...] = get_args(Target)

ON_REQUEST: frozenset[Target] = frozenset({"executor", "main", "task", "planner", "commit", "space"})
"""What is a target only if it is asked for: it needs another master, or a disk, or is one of several that another target means."""

Fault = Literal["kill", "stop", "slow"]
"""What is done to a process."""

FAULTS: tuple[Fault, ...] = get_args(Fault)

Moment = Literal["driver", "worker", "transaction"]
"""What the second kill of a double fault waits for: the driver's JVM, a Python worker, or an open transaction."""

STOPPABLE: frozenset[Target] = frozenset(TARGETS) - {"host", "disk", "space"}
"""What can be stopped as well as killed: a network is cut so long, a clock is wrong so long. The others lose files, too."""

SLOWABLE = STOPPABLE - {"network", "clock"}
"""What can be slowed: processes."""

_MAX_DELAY_MS = 1_200
_STOPPED = 0.3
_SLOWED = 0.33
_TWICE = 0.3
_LAST_PLACE = 0.85
_IN_TRANSACTION = 0.5


@dataclass(frozen=True)
class Again:
    """The second kill of a double fault.

    Attributes:
        target: What is killed.
        moment: As soon as this is there, if the application has made no progress by then.
        choice: From 0 to 1: which one, if there are several.
    """

    target: Target
    moment: Moment
    choice: float


@dataclass(frozen=True)
class KillPoint:
    """One kill to come.

    Attributes:
        target: What is killed.
        position: The number of input records that must have been processed and committed.
        delay_ms: How long after that.
        choice: From 0 to 1: which one, if there are several.
        in_transaction: Whether it then waits until a transaction is open.
        stop_s: Seconds for which the victim is stopped; 0 kills it.
        slow: Whether it is not stopped but slowed.
        again: The second kill, of a double fault.
    """

    target: Target
    position: int
    delay_ms: int
    choice: float
    in_transaction: bool = False
    stop_s: float = 0.0
    slow: bool = False
    again: Again | None = None


def possible_targets(
    guarantee: Guarantee, *, rebuilds: bool, calls: bool, small: bool = False
) -> tuple[Target, ...]:
    """Return the targets that an application must stand.

    Args:
        guarantee: Only exactly once has transactions, and equal results of an application that has been rebuilt.
        rebuilds: Whether all its stores have changelog topics.
        calls: Whether it has asynchronous operators; without them there is no station.
        small: Whether its files lie on a file system that may be filled.
    """
    impossible: set[Target] = set() if guarantee == "exactly_once" else {"transaction", "disk"}
    if not rebuilds:
        impossible.add("disk")
    if not calls:
        impossible.add("station")
    if not small:
        impossible.add("space")
    return tuple(target for target in TARGETS if target not in impossible)


def plan_kills(
    kills: int,
    targets: Sequence[Target],
    records: int,
    seed: int,
    *,
    transactions: bool = False,
    stops: Sequence[float] = (),
    faults: Sequence[Fault] = FAULTS,
    twice: bool = False,
) -> tuple[KillPoint, ...]:
    """Decide on the kills of a run.

    Args:
        kills: How many.
        targets: What may be killed.
        records: The number of records of the workload.
        seed: Equal arguments give equal plans.
        transactions: Whether there are any; then every second kill or so comes while one is open.
        stops: Seconds for which victims may be stopped; without any, all are killed.
        faults: What may be done to processes.
        twice: Whether there are double faults.

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
    more = random.Random(f"faults {seed}")
    slow = random.Random(f"slow {seed}")
    spared = _STOPPED if "kill" in faults else 1.0
    paused = stops if {"stop", "slow"}.intersection(faults) else ()
    slowed = _SLOWED if "stop" in faults else 1.0
    moments: list[Moment] = ["driver", "worker", "transaction"] if transactions else ["driver", "worker"]
    stretch = records * _LAST_PLACE / max(kills, 1)

    def stopped_s(target: Target) -> float:
        return more.choice(paused) if paused and target in STOPPABLE and more.random() < spared else 0.0

    return tuple(
        KillPoint(
            target,
            int(stretch * (number + chance.uniform(0.2, 1))),
            chance.randrange(_MAX_DELAY_MS),
            chance.random(),
            target == "transaction" or (transactions and chance.random() < _IN_TRANSACTION),
            stopped_s(target),
            "slow" in faults and target in SLOWABLE and slow.random() < slowed,
            Again(more.choice(targets), more.choice(moments), more.random())
            if twice and more.random() < _TWICE
            else None,
        )
        for number, target in enumerate(order[:kills])
    )
