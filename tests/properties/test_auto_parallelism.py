"""Automatic parallelism under constant load: it comes to rest within its bounds, and never alternates."""

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
        overhead_s: What a micro-batch takes besides the work of its busiest worker.
        most_work_s: The work that a micro-batch takes at most.
        noise: By which factor the work that a micro-batch reports may differ, at most.
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


def normed(weights: list[int]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


mosts = st.sampled_from(allowed_worker_counts(RANGES))
streams = st.builds(
    Stream,
    shares=st.lists(st.integers(1, 5), min_size=RANGES, max_size=RANGES).map(normed),
    rate=st.builds(lambda workers, utilisation: workers * utilisation, mosts, st.floats(0.1, 1.2)),
    overhead_s=st.floats(0.05, 3),
    most_work_s=st.sampled_from([1.0, 5.0, 50.0]),
    noise=st.floats(1, 1.2),
    seed=st.integers(0, 100),
)
costs = st.floats(0, 20)


def numbers(stream: Stream, workers: int, most: int, cost_s: float, *, loads: int) -> list[int]:
    """Return the numbers of workers, the first one included."""
    state, found = AutoParallelism.of(workers), [workers]
    for _ in range(loads):
        state, change = decided(state, stream.load(state.workers), most)
        assert state.workers in allowed_worker_counts(most) or state.workers == workers
        if change is not None:
            found.append(change.workers)
            state = with_cost(state, cost_s)
            stream.backlog_s += stream.rate * cost_s
    return found


@given(streams, mosts, mosts, costs)
def test_constant_load_moves_the_number_in_one_direction(
    stream: Stream, first: int, most: int, cost_s: float
) -> None:
    found = numbers(stream, first, most, cost_s, loads=1_500)
    assert found in (sorted(found), sorted(found, reverse=True))
    assert len(found) == len(set(found)) <= RANGES.bit_length() + 1


@given(streams, mosts, mosts, costs)
def test_constant_load_without_noise_leads_to_a_fixed_point(
    stream: Stream, first: int, most: int, cost_s: float
) -> None:
    even = replace(stream, noise=1.0)
    found = numbers(even, first, most, cost_s, loads=1_000)
    assert numbers(even, found[-1], most, cost_s, loads=500) == [found[-1]]


@given(streams, mosts, costs)
def test_a_stream_that_ends_leaves_one_worker(stream: Stream, most: int, cost_s: float) -> None:
    workers = numbers(stream, 1, most, cost_s, loads=500)[-1]
    stream.rate = stream.backlog_s = 0.0
    assert numbers(stream, workers, most, cost_s, loads=1_000)[-1] == 1


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 100), st.integers(0, 5), mosts), max_size=80),
    mosts,
)
def test_any_loads_leave_the_number_within_its_bounds(
    loads: list[tuple[float, float, int, int]], first: int
) -> None:
    state, settled_s = AutoParallelism.of(first), 0.0
    for seconds, work, waiting, most in loads:
        load = Load(seconds, {workers: work / workers for workers in allowed_worker_counts(RANGES)}, waiting)
        state, change = decided(state, load, most)
        settled_s += seconds
        if change is not None:
            assert state.workers == change.workers in allowed_worker_counts(most)
            assert settled_s >= 10
            settled_s = 0.0
