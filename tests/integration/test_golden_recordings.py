"""Penstock on Spark and a real broker against Kafka Streams 4.3: every scenario, side by side in one application."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from golden.scenarios import SCENARIOS
from golden.side_by_side import side_by_side
from golden.test_golden import ASKING, first_difference
from penstock.testing.kafka import ConsumedRecord

from .helpers import Apps
from .lanes import Ends, Lane, Steps

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_200)]

SEED = 1
BATCH = 7
CUT = 6
"""The step before which the application is stopped and started again: every recording has records on both sides."""

MOVED_CLOCK = {
    "processor_context_info": "the wall clock is in its results",
    "processor_punctuate_cancel": "punctuates by the wall clock",
    "processor_punctuate_start_time": "punctuates by the wall clock",
    "processor_wall_clock_punctuate": "punctuates by the wall clock",
    "session_emit_on_window_close_throttled": "looks for closed sessions once per second of the wall clock",
    "ss_left_throttled": "looks for unmatched records once per second of the wall clock",
    "ss_outer_throttled": "looks for unmatched records once per second of the wall clock",
    "tumbling_emit_on_window_close_throttled": "looks for closed windows once per second of the wall clock",
}
"""Scenarios that are not played here: what they write depends on a wall clock that the recorder moved. Other recordings have
steps of the clock too, but nothing follows from them."""

PLAYED = sorted(SCENARIOS.keys() - MOVED_CLOCK.keys())


class Played(NamedTuple):
    """What came out of all lanes: where their topics ended after each step, what is in them, how many records were dropped."""

    lanes: dict[str, Lane]
    ends: list[Ends]
    found: dict[str, list[ConsumedRecord]]
    dropped: int


@pytest.fixture(scope="module")
def played(module_apps: Apps) -> Played:
    """Play all lanes; the application is stopped in the middle and started again."""
    apps = module_apps
    lanes = {name: Lane(f"{apps.id}-{name}-", name, SEED, BATCH, rows_once=name in ASKING) for name in PLAYED}
    topology = side_by_side({lane.prefix: lane.topology for lane in lanes.values()})
    ends: list[Ends] = []
    dropped = 0
    with Steps(apps.kafka.bootstrap_servers, topology.plan(apps.id), [*lanes.values()]) as steps:
        steps.create_topics()
        for part in (range(CUT), range(CUT, len(steps))):
            with apps.start(topology) as running:
                ends += map(steps.take, part)
            dropped += running.metrics()["dropped_records"]
    found = {topic: apps.kafka.consume(topic) for lane in lanes.values() for topic in lane.outputs}
    return Played(lanes, ends, found, dropped)


@pytest.mark.parametrize("scenario", PLAYED)
def test_writes_what_kafka_streams_wrote(played: Played, scenario: str) -> None:
    lane = played.lanes[scenario]
    assert first_difference(lane.recording.outputs, lane.played(played.found, played.ends)) is None


def test_drops_as_many_records_as_kafka_streams(played: Played) -> None:
    assert played.dropped == sum(lane.recording.dropped for lane in played.lanes.values())


def test_leaves_out_only_scenarios_that_there_are() -> None:
    assert MOVED_CLOCK.keys() <= SCENARIOS.keys()
