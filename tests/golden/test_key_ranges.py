"""Compares key ranges with Kafka Streams 4.3: results per key and stores are the same, unless the topology is refused.

The recordings of a scenario take turns with the parallelisms and batch sizes. `make soak` runs every recording with every pair.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from millstream.core.model.errors import TopologyError
from millstream.core.topology.analysis.ranges import divided_plan
from proofs.sizes import FULL

from .replay import Recording, expected_by_key, first_difference, in_key_ranges
from .scenarios import SCENARIOS
from .test_golden import ASKING, BATCH_SIZES, FILES, number_of, scenario_of


def refused(scenario: str) -> bool:
    try:
        divided_plan(SCENARIOS[scenario].build().plan("oracle"), 2)
    except TopologyError:
        return True
    return False


REFUSED = {scenario for scenario in SCENARIOS if refused(scenario)}


INTERLEAVED = {
    "dsl_headers_propagation",
    "ktable_aggregate_group_by",
    "ktable_count_group_by",
    "ktable_count_group_by_versioned",
    "ktable_reduce_group_by",
}
"""The results of a group depend on the order of records with different keys, which may differ within a micro-batch; see
docs/concepts/key-ranges.md."""


PARALLELISMS = [2, 17]
"""A parallelism of 2 has 16 ranges, one of 17 has 64."""

TURNS = [[(2, 7), (17, 1000)], [(2, 1)], [(2, 1000)]]
"""The recordings of a scenario take turns with these lists of a parallelism and a batch size."""


def pairs(path: Path) -> list[tuple[int, int]]:
    return list(product(PARALLELISMS, BATCH_SIZES)) if FULL else TURNS[number_of(path) % len(TURNS)]


@pytest.mark.parametrize(
    ("path", "parallelism", "batch_size"),
    [
        pytest.param(path, *pair, id=f"{path.stem}-{pair[0]}-{pair[1]}")
        for path in FILES
        if scenario_of(path) not in REFUSED
        for pair in pairs(path)
    ],
)
def test_key_ranges_have_the_same_results_as_kafka_streams(
    path: Path, parallelism: int, batch_size: int
) -> None:
    recording = Recording.load(path)
    if recording.scenario in INTERLEAVED:
        batch_size = 1
    recording = recording.in_batches_of(batch_size, rows_once=recording.scenario in ASKING)
    replayed, expected = (
        in_key_ranges(parallelism)(SCENARIOS[recording.scenario].build(), recording),
        expected_by_key(recording),
    )
    assert first_difference(expected.outputs, replayed.outputs) is None
    assert replayed.stores == expected.stores
    assert replayed.dropped == expected.dropped
