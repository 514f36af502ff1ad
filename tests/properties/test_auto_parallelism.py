"""Automatic parallelism: under constant load, the number of workers settles within its bounds and never alternates."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.runtime.auto_parallelism import (
    AutoParallelism,
    Load,
    allowed_worker_counts,
    decided,
    with_cost,
)

RANGES = 16


@dataclass
class Stream:
    """A model of a stream and its micro-batches: records arrive at a constant rate, and a change stops the query.

    Attributes:
        shares: The share of the records in each key range.
        rate: Seconds of work that arrive per second.
        overhead_s: The seconds of a micro-batch in addition to the work of its busiest worker.
        most_work_s: The most seconds of work in one micro-batch.
        noise: The largest factor by which the reported work of a micro-batch differs from the real one.
    """

    shares: list[float]
    rate: float
    overhead_s: float
    most_work_s: float
    noise: float
    seed: int
    backlog_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._busiest = {
            workers: max(sum(self.shares[first::workers]) for first in range(workers))
            for workers in allowed_worker_counts(RANGES)
        }

    def load(self, workers: int) -> Load:
        work = min(self.backlog_s, self.most_work_s)
        work *= self._random.uniform(1 / self.noise, self.noise)
        busiest = {number: work * share for number, share in self._busiest.items()}
        seconds = self.overhead_s + busiest[workers]
        self.backlog_s += self.rate * seconds - min(work, self.backlog_s)
        return Load(seconds, busiest, round(1_000 * self.backlog_s))


def normalized(weights: list[int]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


worker_limits = st.sampled_from(allowed_worker_counts(RANGES))
streams = st.builds(
    Stream,
    shares=st.lists(st.integers(1, 5), min_size=RANGES, max_size=RANGES).map(normalized),
    rate=st.builds(lambda workers, utilisation: workers * utilisation, worker_limits, st.floats(0.1, 1.2)),
    overhead_s=st.floats(0.05, 3),
    most_work_s=st.sampled_from([1.0, 5.0, 50.0]),
    noise=st.floats(1, 1.2),
    seed=st.integers(0, 100),
)
costs = st.floats(0, 20)


def worker_counts(stream: Stream, workers: int, most_workers: int, cost_s: float, *, loads: int) -> list[int]:
    """Return the successive numbers of workers, including the first one."""
    state, counts = AutoParallelism.of(workers), [workers]
    for _ in range(loads):
        state, change = decided(state, stream.load(state.workers), most_workers)
        assert state.workers in allowed_worker_counts(most_workers) or state.workers == workers
        if change is not None:
            counts.append(change.workers)
            state = with_cost(state, cost_s)
            stream.backlog_s += stream.rate * cost_s
    return counts


@given(streams, worker_limits, worker_limits, costs)
def test_under_constant_load_the_number_of_workers_moves_in_one_direction(
    stream: Stream, first: int, most_workers: int, cost_s: float
) -> None:
    counts = worker_counts(stream, first, most_workers, cost_s, loads=1_500)
    assert counts in (sorted(counts), sorted(counts, reverse=True))
    assert len(counts) == len(set(counts)) <= RANGES.bit_length() + 1


@given(streams, worker_limits, worker_limits, costs)
def test_under_constant_load_without_noise_the_number_of_workers_settles(
    stream: Stream, first: int, most_workers: int, cost_s: float
) -> None:
    even = replace(stream, noise=1.0)
    counts = worker_counts(even, first, most_workers, cost_s, loads=1_000)
    assert worker_counts(even, counts[-1], most_workers, cost_s, loads=500) == [counts[-1]]


@given(streams, worker_limits, costs)
def test_the_number_of_workers_falls_to_one_when_the_stream_ends(
    stream: Stream, most_workers: int, cost_s: float
) -> None:
    workers = worker_counts(stream, 1, most_workers, cost_s, loads=500)[-1]
    stream.rate = stream.backlog_s = 0.0
    assert worker_counts(stream, workers, most_workers, cost_s, loads=1_000)[-1] == 1


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 100), st.integers(0, 5), worker_limits), max_size=80),
    worker_limits,
)
def test_the_number_of_workers_stays_within_its_bounds_under_any_load(
    loads: list[tuple[float, float, int, int]], first: int
) -> None:
    state, settled_s = AutoParallelism.of(first), 0.0
    for seconds, work, waiting, most_workers in loads:
        load = Load(seconds, {workers: work / workers for workers in allowed_worker_counts(RANGES)}, waiting)
        state, change = decided(state, load, most_workers)
        settled_s += seconds
        if change is not None:
            assert state.workers == change.workers in allowed_worker_counts(most_workers)
            assert settled_s >= 10
            settled_s = 0.0
