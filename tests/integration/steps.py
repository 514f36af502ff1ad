"""The steps in which one application replays lanes, and the application's wall clock.

In a *step*, each lane that takes part writes a batch. The next step begins when the application has processed these records, and all
records that followed from them in internal topics or from the clock. So the order between the topics of a scenario is the recorded one.

While a step is written, all external topics are *paused*, so that a micro-batch reads all of it or nothing. Then the topics of the
lanes that take part are resumed.

Most scenarios ignore the wall clock: they take a batch in each step. Each of the other recordings has moments of its own, but the
application has only one clock, so their moments are merged into one timeline. At each moment the clock is set, and only the lanes
with that moment take part. The other lanes do nothing, because a paused sub-topology does not punctuate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

import millstream as ms
from golden.replay import row_of
from golden.side_by_side import EPOCH_ON_THE_WIRE
from millstream.core.runtime.pausing import resting
from millstream.core.topology.plan import Plan

from .clock import HandClock
from .helpers import eventually
from .lanes import Ends, Lane

EARLY = 6
"""The number of the step before the first restart of the application."""


class Step(NamedTuple):
    """The wall clock and the batches of a step.

    Attributes:
        now_ms: The wall clock.
        batches: The number of the batch that a lane takes, by the lane's prefix.
    """

    now_ms: int
    batches: Mapping[str, int]


def timeline(lanes: Iterable[Lane]) -> list[Step]:
    """Return the steps of lanes that depend on the clock: batches with the same moment and number share a step.

    The batches of a lane at a moment are numbered; a step of the clock has the number 0.
    """
    steps: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for lane in lanes:
        for now, batches in groupby(enumerate(lane.times()), key=lambda batch: batch[1]):
            for number, (batch, _) in enumerate(batches, start=0 if now else 1):
                steps[now, number][lane.prefix] = batch
    return [Step(now, batches) for (now, _), batches in sorted(steps.items())]


def steps_of(lanes: Collection[Lane]) -> list[Step]:
    """Return the steps of all lanes; lanes that ignore the clock take one batch in each step, beginning with the first."""
    clocked, free = [lane for lane in lanes if lane.clocked], [lane for lane in lanes if not lane.clocked]
    steps = timeline(clocked) or [Step(0, {})]
    counts = {lane.prefix: len(lane.recording.batches) for lane in free}
    steps += [Step(steps[-1].now_ms, {})] * (max(counts.values(), default=0) - len(steps))
    return [
        Step(now, {**batches, **{prefix: number for prefix, count in counts.items() if number < count}})
        for number, (now, batches) in enumerate(steps)
    ]


def runs(steps: int) -> Iterator[range]:
    """Split the steps into runs of the application, which restarts early and in the middle.

    Most lanes have records before and after the early restart; lanes that depend on the clock have them later.
    """
    return (range(*ends) for ends in pairwise([0, EARLY, steps // 2, steps]))


class Steps:
    """Takes the steps of lanes, and waits until the application has processed each.

    Args:
        servers: The addresses of the broker.
        plan: The plan of the application that runs all lanes.
        lanes: The lanes.
        clock: The clock of the application.
    """

    def __init__(self, servers: str, plan: Plan, lanes: Collection[Lane], clock: HandClock) -> None:
        self.plan = plan
        self.lanes = {lane.prefix: lane for lane in lanes}
        self.steps = steps_of(self.lanes.values())
        self._clock = clock
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 100})
        self._group = Consumer(
            {"bootstrap.servers": servers, "group.id": plan.application_id, "enable.auto.commit": False}
        )

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *exc: object) -> None:
        self._group.close()

    def __len__(self) -> int:
        return len(self.steps)

    def create_topics(self) -> None:
        """Create the topics of all lanes, with one partition each, and wait until the broker lists them."""
        names = {topic for lane in self.lanes.values() for topic in (*lane.inputs, *lane.outputs)}
        config = {"retention.ms": "-1"}
        for future in self._admin.create_topics([NewTopic(n, 1, 1, config=config) for n in names]).values():
            future.result(30)
        eventually(lambda: names <= self._admin.list_topics(timeout=30).topics.keys(), "the topics")

    def taken_by(self, lane: Lane) -> list[int]:
        """Return the number of the step in which a lane takes each of its batches."""
        return [number for number, step in enumerate(self.steps) if lane.prefix in step.batches]

    def take(self, number: int, running: ms.RunningApplication) -> Ends:
        """Take a step; return the end offsets of the output topics after it."""
        step = self.steps[number]
        running.pause(self.plan.external_topics)
        self._clock.set(step.now_ms)
        for prefix, batch in step.batches.items():
            self._write(self.lanes[prefix], batch)
        assert self._producer.flush(30) == 0
        self._clock.await_reading()
        running.resume([topic for prefix in step.batches for topic in self.lanes[prefix].sources])
        eventually(lambda: self._is_done(step, running), f"step {number} to be processed", within_s=240)
        return self._ends(topic for lane in self.lanes.values() for topic in lane.outputs)

    def _write(self, lane: Lane, batch: int) -> None:
        for entry in lane.entries(batch):
            key, value, timestamp, headers = row_of(entry)
            target = {"partition": 0, "timestamp": timestamp + EPOCH_ON_THE_WIRE}
            self._producer.produce(lane.prefix + entry["topic"], value, key, headers=list(headers), **target)

    def _is_done(self, step: Step, running: ms.RunningApplication) -> bool:
        """Return whether all topics of the step are committed to their ends, and nothing is due by the clock.

        The committed offsets are read before the ends. When a micro-batch commits, everything that it made due is known.
        """
        status, topics = running.status(), self._topics_of(step)
        assert status.error is None, status.error
        positions = self._group.committed([TopicPartition(topic, 0) for topic in topics], timeout=30)
        committed = {position.topic: max(position.offset, 0) for position in positions}
        if committed != self._ends(topics):
            return False
        return not running._run.reports.due(step.now_ms, resting(self.plan, status.paused))

    def _topics_of(self, step: Step) -> list[str]:
        """Return the topics that the lanes of the step read; topics of other lanes do not change."""
        internal = (f"{self.plan.application_id}-{prefix}" for prefix in step.batches)
        prefixes = (*step.batches, *internal)
        return [topic for topic in self.plan.broker_topics if topic.startswith(prefixes)]

    def _ends(self, topics: Iterable[str]) -> Ends:
        latest = OffsetSpec.latest()
        futures = self._admin.list_offsets({TopicPartition(topic, 0): latest for topic in topics})
        return {partition.topic: future.result(30).offset for partition, future in futures.items()}
