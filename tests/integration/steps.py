"""The steps in which lanes are played by one application, and the one wall clock that it has.

In a *step* lanes write a batch each, and the next step begins when all that was written, and all that followed from it through
internal topics or from the clock, has been processed. So the order between the topics of a scenario is the recorded one.

While a step is written, all topics from outside are *paused*, so that a micro-batch finds all of it or nothing. Then the
lanes that take part are resumed.

Most scenarios do not mind the wall clock: they take a batch in each step. For the others every recording has moments of its
own, and the application has one clock. They are played along one line of time: at each moment of any of them the clock is set
to it, and of these lanes only those that have that moment take part. Nothing happens in the others: a sub-topology that is
paused does not punctuate.
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
"""The step before which the application is first started again."""


class Step(NamedTuple):
    """What happens in a step.

    Attributes:
        now_ms: The wall clock.
        batches: The number of the batch that a lane takes, by the lane's prefix.
    """

    now_ms: int
    batches: Mapping[str, int]


def timeline(lanes: Iterable[Lane]) -> list[Step]:
    """Return the steps of lanes that follow the clock: batches of the same moment share a step.

    The batches of a lane at a moment are numbered, a step of the clock first with 0; those of equal number share a step.
    """
    steps: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for lane in lanes:
        for now, batches in groupby(enumerate(lane.times()), key=lambda batch: batch[1]):
            for number, (batch, _) in enumerate(batches, start=0 if now else 1):
                steps[now, number][lane.prefix] = batch
    return [Step(now, batches) for (now, _), batches in sorted(steps.items())]


def steps_of(lanes: Collection[Lane]) -> list[Step]:
    """Return the steps of all lanes; lanes that ignore the clock take one batch in each step, from the first on."""
    clocked, free = [lane for lane in lanes if lane.clocked], [lane for lane in lanes if not lane.clocked]
    steps = timeline(clocked) or [Step(0, {})]
    counts = {lane.prefix: len(lane.recording.batches) for lane in free}
    steps += [Step(steps[-1].now_ms, {})] * (max(counts.values(), default=0) - len(steps))
    return [
        Step(now, {**batches, **{prefix: number for prefix, count in counts.items() if number < count}})
        for number, (now, batches) in enumerate(steps)
    ]


def runs(steps: int) -> Iterator[range]:
    """Cut steps into runs of the application, which is started again early and in the middle.

    Early is when most lanes have records on both sides; those that follow the clock have them later.
    """
    return (range(*ends) for ends in pairwise([0, EARLY, steps // 2, steps]))


class Steps:
    """Takes the steps of lanes, and sees when an application is done with each.

    Args:
        servers: Where the broker is.
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

        The committed offsets are read before the ends. What a micro-batch makes due is known when it commits.
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
