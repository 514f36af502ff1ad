"""Topologies side by side are those that stand alone, under other names."""

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
    """Yield all texts in a frozen value, but not the kinds of joins, which have names of topics."""
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
def test_no_name_is_left_as_it_was(scenario: str) -> None:
    alone = SCENARIOS[scenario].build()
    among = side_by_side({"prefix-": alone})
    found = {text for node in among.nodes.values() for text in texts_in(node)}
    assert not found & names_of(alone)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_description_differs_in_names_only(scenario: str) -> None:
    alone = SCENARIOS[scenario].build()
    assert side_by_side({"prefix-": alone}).describe().replace("prefix-", "") == alone.describe()


def test_they_share_no_sub_topology() -> None:
    built = {f"{name}-": scenario.build() for name, scenario in SCENARIOS.items()}
    together = side_by_side(built).plan()
    assert len(together.subtopologies) == sum(len(t.plan().subtopologies) for t in built.values())
    for sub in together.subtopologies:
        assert len({name.split("-")[0] for name in sub.nodes}) == 1


def sent(topology: ms.Topology, recording: Recording, prefix: str, later: int) -> dict[str, list[ms.Record]]:
    """Return what a topology sends to the external topics of a recording."""
    runner = MicroBatches(topology, "app", chunk=1000, budget=None)
    for batch in recording.batches:
        if "topic" in batch[0]:
            rows = [(key, value, time + later, headers) for key, value, time, headers in map(row_of, batch)]
            runner.process(prefix + batch[0]["topic"], rows)
        else:
            runner.advance_to(runner.now_ms + batch[0]["advance_wall_clock_ms"])
    return {topic: runner.sent[prefix + topic] for topic in recording.topics}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_gives_what_it_gives_alone(scenario: str) -> None:
    recording = Recording.load(DATA / f"{scenario}.1.json").in_batches_of(7)
    alone = SCENARIOS[scenario].build()
    among = side_by_side({"prefix-": alone})
    expected = sent(alone, recording, "", 0)
    assert sent(among, recording, "prefix-", EPOCH_ON_THE_WIRE) == expected
