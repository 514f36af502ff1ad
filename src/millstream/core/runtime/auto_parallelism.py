"""Automatic parallelism: adjusts the number of workers that process key ranges to the load of the micro-batches.

A *worker* is a Spark partition. The number of workers is a power of two, because key ranges spread evenly over such numbers. The
*utilisation* of a number of workers is the share of time for which the busiest worker processes records:

* From 0.6 on, if records are waiting, micro-batches wait for one worker. The next number of workers is the first at which the busiest
  worker has clearly less work: usually twice as many workers. If one key range has most of the work, there is no such number.
* A number at which the utilisation would be at most 0.25 suffices and becomes the new number.

Under a constant load, no number satisfies both conditions, because fewer workers never have less work each. The number therefore cannot
alternate.

A change stops the query for seconds, so it requires several consecutive loads that agree for some time. More workers also require
a minimum time since the last change: five times its cost. Fewer workers require a low load for at least as long as the last change took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

_HIGH: Final = 0.6
_LOW: Final = 0.25
_HELPS: Final = 0.8
"""Maximum fraction of its work that the busiest worker may keep if more workers are to be worthwhile."""
_LOADS: Final = 3
_RAISE_AFTER_S: Final = 3.0
_LOWER_AFTER_S: Final = 15.0
_SETTLE_S: Final = 10.0
_SETTLE_COSTS: Final = 5
"""Minimum time before more workers, as a multiple of the cost of the last change."""


@dataclass(frozen=True)
class Load:
    """The load of a micro-batch, or of a period without one.

    Attributes:
        seconds: Time from the end of the previous load to the end of this one.
        busiest: Processing seconds of the busiest worker, by number of workers, for all allowed numbers and the current one.
        waiting: Number of records that wait in the topics at the end.
    """

    seconds: float
    busiest: Mapping[int, float]
    waiting: int

    def utilisation(self, workers: int) -> float:
        return self.busiest[workers] / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class AutoParallelism:
    """The number of workers, and the evidence for a change.

    Attributes:
        wanted: The number on which the latest loads agree.
        loads: Number of consecutive loads that agree on more, or on fewer workers.
        agreed_s: Total time of these loads.
        settled_s: Time since the last change, or since the start.
        cost_s: How long the last change stopped the query.
    """

    workers: int
    wanted: int
    loads: int = 0
    agreed_s: float = 0.0
    settled_s: float = 0.0
    cost_s: float = 0.0

    @classmethod
    def of(cls, workers: int) -> AutoParallelism:
        return cls(workers, workers)


@dataclass(frozen=True)
class WorkersChange:
    workers: int
    reason: str


def most_workers(ranges: int, cores: int) -> int:
    """Return the maximum number of workers: a power of two, at most the number of key ranges and of cores."""
    return 1 << (max(min(ranges, cores), 1).bit_length() - 1)


def allowed_worker_counts(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def decided(state: AutoParallelism, load: Load, most: int) -> tuple[AutoParallelism, WorkersChange | None]:
    """Decide on the number of workers after a load.

    Args:
        most: The current maximum number of workers, a power of two.

    Returns:
        The next state, which already has the new number, and the change, or None if there is no change.
    """
    state = _with_load(state, load, _wanted_workers(state.workers, load, most))
    if state.wanted == state.workers or not _has_settled(state):
        return state, None
    # The maximum may have fallen since an earlier load.
    state = replace(state, wanted=min(state.wanted, most))
    return replace(AutoParallelism.of(state.wanted), cost_s=state.cost_s), _change(state, load, most)


def with_cost(state: AutoParallelism, cost_s: float) -> AutoParallelism:
    """Return the state once the query runs again after a change."""
    return replace(state, cost_s=cost_s)


def _wanted_workers(workers: int, load: Load, most: int) -> int:
    sufficient = [
        fewer for fewer in allowed_worker_counts(most) if fewer < workers and load.utilisation(fewer) <= _LOW
    ]
    if workers > most or sufficient:
        return min([*sufficient, most])
    if not load.waiting or load.utilisation(workers) < _HIGH:
        return workers
    enough = _HELPS * load.busiest[workers]
    return next(
        (more for more in allowed_worker_counts(most) if more > workers and load.busiest[more] <= enough),
        workers,
    )


def _with_load(state: AutoParallelism, load: Load, wanted: int) -> AutoParallelism:
    """Count a load. Of several loads that want fewer workers, the largest number counts."""
    settled_s = state.settled_s + load.seconds
    direction = (wanted > state.workers) - (wanted < state.workers)
    if direction == 0:
        return replace(state, wanted=wanted, loads=0, agreed_s=0.0, settled_s=settled_s)
    if direction != (state.wanted > state.workers) - (state.wanted < state.workers):
        return replace(state, wanted=wanted, loads=1, agreed_s=load.seconds, settled_s=settled_s)
    return replace(
        state,
        wanted=max(wanted, state.wanted),
        loads=state.loads + 1,
        agreed_s=state.agreed_s + load.seconds,
        settled_s=settled_s,
    )


def _has_settled(state: AutoParallelism) -> bool:
    """Return whether loads have agreed for long enough and the last change was long enough ago."""
    if state.loads < _LOADS:
        return False
    if state.wanted < state.workers:
        return state.agreed_s >= max(_LOWER_AFTER_S, state.cost_s)
    settle_s = max(_SETTLE_S, _SETTLE_COSTS * state.cost_s)
    return state.agreed_s >= _RAISE_AFTER_S and state.settled_s >= settle_s


def _change(state: AutoParallelism, load: Load, most: int) -> WorkersChange:
    if state.workers > most:
        reason = f"there are cores and key ranges for {most}"
    elif state.wanted > state.workers:
        reason = f"the busiest worker processes for {load.utilisation(state.workers):.0%} of the time, and {load.waiting:,} records wait"
    else:
        reason = f"with {state.wanted}, the busiest worker would process for {load.utilisation(state.wanted):.0%} of the time"
    return WorkersChange(
        state.wanted, f"the number of workers changes from {state.workers} to {state.wanted}: {reason}"
    )
