"""Comparison with Kafka Streams 4.3 on Spark and a real broker: one application runs all scenarios side by side."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from golden.replay import dump
from golden.scenarios import SCENARIOS
from golden.side_by_side import side_by_side
from golden.test_golden import ASKING, first_difference
from millstream.core.model.ids import TaskId
from millstream.core.topology.plan import Plan
from millstream.testing.kafka import ConsumedRecord
from proofs.sizes import FULL

from .checkpoints import LeftBehind
from .clock import HandClock
from .helpers import Apps
from .lanes import Ends, Lane
from .steps import Steps, runs

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_200)]

SEED = int(os.environ.get("MILLSTREAM_TEST_RECORDINGS_SEED", "1"))
"""Which recording of each scenario is played."""

BATCH = 7

CLOCKED = {
    "processor_context_info": "the wall clock is in its results",
    "processor_punctuate_cancel": "punctuates by the wall clock",
    "processor_punctuate_start_time": "punctuates by the wall clock",
    "processor_wall_clock_punctuate": "punctuates by the wall clock",
    "session_emit_on_window_close_throttled": "looks for closed sessions once per second of the wall clock",
    "ss_left_throttled": "looks for unmatched records once per second of the wall clock",
    "ss_outer_throttled": "looks for unmatched records once per second of the wall clock",
    "tumbling_emit_on_window_close_throttled": "looks for closed windows once per second of the wall clock",
}
"""Scenarios whose results depend on the wall clock. Other recordings advance the clock too, but without effect."""

ONLY_IN_SOAK = {
    "processor_punctuate_cancel",
    "processor_punctuate_start_time",
    "processor_wall_clock_punctuate",
    "ss_left_throttled",
    "ss_outer_throttled",
    "tumbling_emit_on_window_close_throttled",
}
"""Scenarios with their own points in time, which would quadruple the number of steps.

The engine replays them in every test run. On Spark, two other scenarios depend on the clock, and `test_word_count.py` and
`test_punctuation.py` test wall-clock punctuation.
"""

PLAYED = sorted(SCENARIOS if FULL else SCENARIOS.keys() - ONLY_IN_SOAK)


class Played(NamedTuple):
    """The results of a run.

    Attributes:
        lanes: The lanes, by scenario.
        ends: The end offsets of the output topics after each batch, by scenario.
        found: The records in the output topics, by topic.
        dropped: The number of dropped records, by scenario.
        left_behind: The contents of the stores.
    """

    lanes: dict[str, Lane]
    ends: dict[str, list[Ends]]
    found: dict[str, list[ConsumedRecord]]
    dropped: Counter[str]
    left_behind: LeftBehind


@pytest.fixture(scope="module")
def played(module_apps: Apps, spark: SparkSession) -> Played:
    """Play all lanes; the application restarts early and in the middle."""
    apps = module_apps
    lanes = lanes_of(apps.id, SEED)
    topology = side_by_side({lane.prefix: lane.topology for lane in lanes.values()})
    plan = topology.plan(apps.id)
    clock = HandClock(apps.home / "clock")
    ends: list[Ends] = []
    dropped: Counter[str] = Counter()
    with Steps(apps.kafka.bootstrap_servers, plan, lanes.values(), clock) as steps:
        steps.create_topics()
        for run in runs(len(steps)):
            with apps.start(topology, clock=clock) as running:
                ends += [steps.take(number, running) for number in run]
                # The first micro-batch of the next run reaches all tasks, but nothing may be due in it.
                running.pause(plan.external_topics, keep=True)
            dropped += by_scenario(running.status().dropped, plan, lanes)
        of_batches = {name: [ends[number] for number in steps.taken_by(lane)] for name, lane in lanes.items()}
    found = {topic: apps.kafka.consume(topic) for lane in lanes.values() for topic in lane.outputs}
    location = apps.application(topology).settings.checkpoint(apps.id)
    return Played(lanes, of_batches, found, dropped, LeftBehind(spark, location, apps.local_state, plan))


def lanes_of(application_id: str, seed: int) -> dict[str, Lane]:
    """Return the lanes by scenario."""
    return {
        name: Lane(
            f"{application_id}-{name}-", name, seed, BATCH, rows_once=name in ASKING, clocked=name in CLOCKED
        )
        for name in PLAYED
    }


def by_scenario(counts: Mapping[str, int], plan: Plan, lanes: Mapping[str, Lane]) -> Counter[str]:
    """Add up counts of tasks by scenario."""
    found: Counter[str] = Counter()
    parts = {part.id: part for part in (*plan.subtopologies, *plan.global_parts)}
    for task, count in counts.items():
        node = next(iter(parts[TaskId.parse(task).subtopology].nodes))
        found[next(name for name, lane in lanes.items() if node.startswith(lane.prefix))] += count
    return found


@pytest.mark.parametrize("scenario", PLAYED)
def test_the_output_equals_that_of_kafka_streams(played: Played, scenario: str) -> None:
    lane = played.lanes[scenario]
    assert first_difference(lane.recording.outputs, lane.played(played.found, played.ends[scenario])) is None


@pytest.mark.parametrize("scenario", PLAYED)
def test_the_store_contents_equal_those_of_kafka_streams(played: Played, scenario: str) -> None:
    lane = played.lanes[scenario]
    for name, entries in lane.recording.stores.items():
        store = played.left_behind.store(lane.prefix + name)
        assert first_difference(entries, dump(store, lane.recording)) is None, name


@pytest.mark.parametrize("scenario", PLAYED)
def test_as_many_records_are_dropped_as_by_kafka_streams(played: Played, scenario: str) -> None:
    lane = played.lanes[scenario]
    assert played.dropped[scenario] == lane.recording.dropped
