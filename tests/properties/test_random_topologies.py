"""Random topologies have the same results in every mode: in columns or record by record, with or without caches, in one task or in a
new one for each step, with or without threads, with or without taps, and in batches of any size.

``make soak`` runs them with fresh seeds; Hypothesis prints how to run a failing example again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import millstream as ms
from golden.micro_batches import MicroBatches, Row
from millstream.core.engine import record_processing
from millstream.core.engine.operators.windows import window_columns
from millstream.core.ports import Threads
from unit.helpers import ShuffledThreads

from .test_columns import record_by_record
from .topologies import INPUTS, RECIPES, Step, built

KEYS = st.sampled_from([None, "a", "b", "ab"])
VALUES = st.sampled_from(["a", "b", "ab", "ba", None])
ROWS = st.lists(st.tuples(st.sampled_from(INPUTS), KEYS, VALUES, st.integers(0, 60)), min_size=1, max_size=30)
Entry = tuple[str, str | None, str | None, int]
"""Topic, key, value, timestamp."""


@dataclass(frozen=True)
class Mode:
    """How a topology is run. With the same cache and budget, all modes must have the same results."""

    in_columns: bool = True
    restarts: bool = True
    threads: Threads | None = None
    cache_bytes: int = 0
    budget: int | None = None
    tapped: bool = False

    @contextmanager
    def engine(self) -> Iterator[None]:
        with (
            patch.object(window_columns, "_APART", 0),
            nullcontext()
            if self.in_columns
            else patch.object(record_processing, "columnar_entries", record_by_record),
        ):
            yield


def raw(data: str | None) -> bytes | None:
    return None if data is None else data.encode()


def batches_of(entries: Sequence[Entry], size: int) -> Iterator[tuple[str, list[Row]]]:
    """Cut records into batches of neighbours of one topic, of at most a size."""
    rows: list[Row] = []
    for number, (topic, key, value, timestamp) in enumerate(entries):
        rows.append((raw(key), raw(value), timestamp, ()))
        last = number + 1 == len(entries) or entries[number + 1][0] != topic
        if last or len(rows) == size:
            yield topic, rows
            rows = []


@dataclass
class Result:
    """The result of a run: sent records by topic, rows of stores, the number of dropped records, and those that passed tapped nodes."""

    sent: dict[str, list[ms.Record[Any, Any]]]
    stores: dict[str, list[Any]]
    dropped: int
    passed: Mapping[str, int] = field(default_factory=dict)


def run(topology: ms.Topology, entries: Sequence[Entry], size: int, mode: Mode) -> Result:
    with mode.engine():
        runner = MicroBatches(
            topology,
            "app",
            chunk=3,
            budget=mode.budget,
            threads=mode.threads,
            cache_bytes=mode.cache_bytes,
            restarts=mode.restarts,
            tapped=mode.tapped,
        )
        known = {
            topic
            for part in (*runner.plan.subtopologies, *runner.plan.global_parts)
            for topic in part.source_topics
        }
        for topic, rows in batches_of([entry for entry in entries if entry[0] in known], size):
            runner.process(topic, rows)
        parts = (*runner.plan.subtopologies, *runner.plan.global_parts)
        stores = {
            name: list(store.all())
            for part in parts
            for name in part.stores
            if hasattr(store := runner.store(name), "all")
        }
    sent = {topic: sent for topic, sent in runner.sent.items() if sent}
    return Result(sent, stores, runner.dropped, runner.passed)


SIZES = st.sampled_from([1, 2, 5, 100])


@settings(max_examples=4 * settings().max_examples)
@given(
    recipe=RECIPES,
    entries=ROWS,
    size=SIZES,
    cache_bytes=st.sampled_from([0, 1 << 20]),
    budget=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 1 << 16),
)
def test_a_topology_has_the_same_results_in_every_mode(
    recipe: list[Step], entries: list[Entry], size: int, cache_bytes: int, budget: int | None, seed: int
) -> None:
    topology = built(recipe)
    known: dict[str, Any] = {"cache_bytes": cache_bytes, "budget": budget}
    expected = run(topology, entries, size, Mode(in_columns=False, restarts=False, **known))
    for mode in (
        Mode(**known),
        Mode(restarts=False, **known),
        Mode(in_columns=False, **known),
        Mode(threads=ShuffledThreads(3, seed), **known),
    ):
        assert run(topology, entries, size, mode) == expected
    tapped = run(topology, entries, size, Mode(tapped=True, **known))
    assert replace(tapped, passed={}) == expected
    threads = ShuffledThreads(3, seed)
    assert run(topology, entries, size, Mode(tapped=True, threads=threads, **known)) == tapped


@settings(max_examples=4 * settings().max_examples)
@given(recipe=RECIPES, entries=ROWS, size=SIZES, budget=st.sampled_from([None, 3]))
def test_the_size_of_batches_does_not_change_the_results(
    recipe: list[Step], entries: list[Entry], size: int, budget: int | None
) -> None:
    topology = built(recipe)
    assume(reads_single_topics(topology))
    assert run(topology, entries, size, Mode(budget=budget)) == run(topology, entries, 1, Mode())


def reads_single_topics(topology: ms.Topology) -> bool:
    """Return whether no task reads an internal topic together with another input, so that no result depends on which comes first."""
    plan = topology.plan("app")
    return all(
        len(plan.subtopologies[topic.downstream].source_topics) == 1
        for topic in plan.internal_topics.values()
    )


STREAMS_ONLY = st.lists(
    st.builds(Step, st.just("stateless"), st.integers(0, 7), st.just(0), st.integers(0, 59)), max_size=3
)
AGGREGATION = st.builds(
    Step, st.sampled_from(["aggregation"]), st.integers(0, 7), st.integers(0, 7), st.integers(0, 59)
)


@settings(max_examples=2 * settings().max_examples)
@given(recipe=STREAMS_ONLY, last=AGGREGATION, entries=ROWS, size=SIZES)
def test_caches_leave_out_only_updates_that_newer_updates_replace(
    recipe: list[Step], last: Step, entries: list[Entry], size: int
) -> None:
    topology = built([*recipe, last])
    every = run(topology, entries, size, Mode())
    cached = run(topology, entries, size, Mode(cache_bytes=1 << 20))
    assert (cached.stores, cached.dropped) == (every.stores, every.dropped)
    for topic, sent in every.sent.items():
        assert newest(cached.sent[topic]) == newest(sent)


def newest(sent: list[ms.Record[Any, Any]]) -> dict[Any, Any]:
    return {record.key: record.value for record in sent}
