"""Topologies that are combined with `side_by_side` behave as they do alone; only their names differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

import millstream as ms

from .micro_batches import MicroBatches
from .replay import DATA, Recording, row_of
from .scenarios import SCENARIOS
from .side_by_side import EPOCH_ON_THE_WIRE, side_by_side


def names_of(topology: ms.Topology) -> set[str]:
    """Return the names of nodes, stores and topics."""
    plan = topology.plan()
    topics = (*plan.external_topics, *plan.global_part_of, *plan.sink_topics)
    return {*topology.nodes, *topology.stores, *topics}


def texts_in(value: Any) -> Iterator[str]:
    """Yield all strings in a frozen value, except for the kinds of joins, which may equal names of topics."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from texts_in(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name != "kind":
                yield from texts_in(getattr(value, field.name))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_node_contains_a_name_without_the_prefix(scenario: str) -> None:
    alone = SCENARIOS[scenario].build()
    prefixed = side_by_side({"prefix-": alone})
    texts = {text for node in prefixed.nodes.values() for text in texts_in(node)}
    assert not texts & names_of(alone)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_description_differs_only_by_the_prefix(scenario: str) -> None:
    alone = SCENARIOS[scenario].build()
    assert side_by_side({"prefix-": alone}).describe().replace("prefix-", "") == alone.describe()


def test_topologies_side_by_side_share_no_sub_topology() -> None:
    topologies = {f"{name}-": scenario.build() for name, scenario in SCENARIOS.items()}
    combined_plan = side_by_side(topologies).plan()
    assert len(combined_plan.subtopologies) == sum(len(t.plan().subtopologies) for t in topologies.values())
    for sub in combined_plan.subtopologies:
        assert len({name.split("-")[0] for name in sub.nodes}) == 1


def sent(
    topology: ms.Topology, recording: Recording, prefix: str, shift_ms: int
) -> dict[str, list[ms.Record]]:
    """Return the records that a topology sends to the output topics of a recording."""
    runner = MicroBatches(topology, "app", chunk=1000, budget=None)
    for batch in recording.batches:
        if "topic" in batch[0]:
            rows = [
                (key, value, time + shift_ms, headers) for key, value, time, headers in map(row_of, batch)
            ]
            runner.process(prefix + batch[0]["topic"], rows)
        else:
            runner.advance_to(runner.now_ms + batch[0]["advance_wall_clock_ms"])
    return {topic: runner.sent[prefix + topic] for topic in recording.topics}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_prefixed_topology_sends_the_same_records_as_the_topology_alone(scenario: str) -> None:
    recording = Recording.load(DATA / f"{scenario}.1.json").in_batches_of(7)
    alone = SCENARIOS[scenario].build()
    prefixed = side_by_side({"prefix-": alone})
    expected = sent(alone, recording, "", 0)
    assert sent(prefixed, recording, "prefix-", EPOCH_ON_THE_WIRE) == expected
