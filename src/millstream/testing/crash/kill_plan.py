"""The plan of a run: which targets are killed, stopped or slowed, and at which points of the stream, all derived from one seed.

A *kill point* is a position in the input and a delay: the kill happens that many ms after the committed offsets of the group have reached
the position. Positions are spread over the stream, so that there is progress between two kills. Delays are up to one or two micro-batches
long, so that kills hit all phases of a micro-batch. Transactions are short, so some kills also wait for an open one. Targets are taken in
turn, in shuffled order, so that a few kills hit as many different targets as possible.

A victim that is not killed is *stopped* with SIGSTOP and resumed with SIGCONT after some seconds, like a suspended machine or a long
garbage collection; or it is *slowed*: stopped for nine tenths of that time, in short intervals. A *double fault* kills a second time before
the application has recovered: while it starts, restores, or repeats its micro-batch.
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
    "async-worker",
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
"""The targets of faults, mostly processes, which are killed with SIGKILL.

``program``
    The Python program and all processes it has started, at once, like the end of a container.
``host``
    Like ``program``, and the local copies of the stores are deleted, as if the program restarted on another host.
``disk``
    Like ``host``, and the checkpoint is also deleted: only the data in Kafka remain.
``driver``
    The driver's JVM alone.
``executor``
    The JVM of one executor. Such a run uses ``local-cluster``; all others use threads of the driver's JVM.
``worker``
    One Python worker.
``async-worker``
    The async worker: the process next to an executor that runs the calls of asynchronous operators.
``broker``
    The broker, at any moment.
``transaction``
    The broker, always during an open transaction.
``network``
    All connections between the application and the brokers, at once.
``clock``
    The application's wall clock, which jumps forward or back by an hour or a day.
``main``
    The Python program alone, without the processes it has started.
``task``, ``planner``, ``commit``
    One Python worker of this kind: of tasks, of the planner, or of the sink's commit.
``space``
    The disk of checkpoint and local copies, which is full until the application has ended, also after a restart.
"""

TARGETS: tuple[Target, ...] = get_args(Target)

ON_REQUEST: frozenset[Target] = frozenset({"executor", "main", "task", "planner", "commit", "space"})
"""Targets that must be requested, because they need another master or a disk, or are a special case of another target."""

Fault = Literal["kill", "stop", "slow"]

FAULTS: tuple[Fault, ...] = get_args(Fault)

Moment = Literal["driver", "worker", "transaction"]
"""The moment of the second kill of a double fault: a running driver JVM or Python worker, or an open transaction."""

STOPPABLE: frozenset[Target] = frozenset(TARGETS) - {"host", "disk", "space"}
"""Targets that can be stopped; for that time, a network is cut and a clock is wrong. The other targets also delete files."""

SLOWABLE = STOPPABLE - {"network", "clock"}
"""Targets that can be slowed: processes."""

_MAX_DELAY_MS = 1_200
_STOPPED = 0.3
_SLOWED = 0.33
_TWICE = 0.3
_LAST_POSITION = 0.85
_IN_TRANSACTION = 0.5


@dataclass(frozen=True)
class Again:
    """The second kill of a double fault.

    Attributes:
        moment: When to kill, if the application has made no progress by then.
        choice: Selects the victim if there are several, from 0 to 1.
    """

    target: Target
    moment: Moment
    choice: float


@dataclass(frozen=True)
class KillPoint:
    """A planned fault.

    Attributes:
        position: The number of input records that must be processed and committed first.
        choice: Selects the victim if there are several, from 0 to 1.
        stop_s: How long to stop the victim, in seconds; 0 kills it.
        slow: Whether to slow it instead of stopping it.
        again: The second kill of a double fault, or None.
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
    """Return the targets that apply to an application.

    Args:
        guarantee: Only exactly once has transactions, and equal results after the stores are rebuilt from Kafka.
        rebuilds: Whether all its stores have changelog topics.
        calls: Whether it has asynchronous operators. Without them, there is no async worker (``async-worker``).
        small: Whether its files are on a file system that may be filled.
    """
    impossible: set[Target] = set() if guarantee == "exactly_once" else {"transaction", "disk"}
    if not rebuilds:
        impossible.add("disk")
    if not calls:
        impossible.add("async-worker")
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
    """Plan the kills of a run.

    Args:
        seed: Equal arguments return equal plans.
        transactions: Whether there are transactions. If so, about half of the kills happen while one is open.
        stops: Durations in seconds for which victims may be stopped; empty to kill all victims.

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
    stretch = records * _LAST_POSITION / max(kills, 1)

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
