"""Key ranges against Kafka Streams 4.3: recordings give the same per key and the same stores, or the topology is refused.

The recordings of a scenario take turns with the sizes of batches; `make soak` runs every file with every pair.
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
"""The results of a group follow the order of records with other keys, which differs within a micro-batch; see docs/concepts/key-ranges.md."""


PARALLELISMS = [2, 17]
"""The first has 16 ranges, the second 64."""

TURNS = [[(2, 7), (17, 1000)], [(2, 1)], [(2, 1000)]]
"""Pairs of a parallelism and a batch size, for the recordings of a scenario in turn."""


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
def test_ranges_give_what_kafka_streams_gives(path: Path, parallelism: int, batch_size: int) -> None:
    recording = Recording.load(path)
    if recording.scenario in INTERLEAVED:
        batch_size = 1
    recording = recording.in_batches_of(batch_size, rows_once=recording.scenario in ASKING)
    replayed, wanted = (
        in_key_ranges(parallelism)(SCENARIOS[recording.scenario].build(), recording),
        expected_by_key(recording),
    )
    assert first_difference(wanted.outputs, replayed.outputs) is None
    assert replayed.stores == wanted.stores
    assert replayed.dropped == wanted.dropped
