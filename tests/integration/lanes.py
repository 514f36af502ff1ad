"""Recordings of Kafka Streams that are played side by side in one application, in steps.

Each scenario has a *lane*: its topology, its topics, and its recording cut into batches as `golden.replay` does. In a *step*
every lane that has a batch left writes it, and the next step begins when all that was written, and all that followed from
it through internal topics, has been processed. So the order between the topics of a scenario is the recorded one and no task
has to choose; and a run has as many steps as the longest recording, not as all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

import penstock as ps
from golden.micro_batches import read
from golden.replay import APPLICATION_ID, DATA, Entry, Recording, collect, row_of
from golden.scenarios import SCENARIOS
from golden.side_by_side import EPOCH_ON_THE_WIRE
from penstock.core.plan.nodes import Sink
from penstock.core.plan.split import Plan
from penstock.testing.kafka import ConsumedRecord

from .helpers import eventually

EARLIEST_WRITTEN = 1
"""The timestamp that a result of the time 0 gets, which librdkafka cannot write."""

Ends = dict[str, int]
"""The end offset of topics of one partition."""


@dataclass(frozen=True)
class Lane:
    """A scenario among others.

    Attributes:
        prefix: What its names begin with.
        scenario: Its name.
        seed: Which of its recordings is played.
        batch: How many records may be written in a step.
        rows_once: Whether a step may have only one change of a row.
    """

    prefix: str
    scenario: str
    seed: int
    batch: int
    rows_once: bool

    @cached_property
    def topology(self) -> ps.Topology:
        return SCENARIOS[self.scenario].build()

    @cached_property
    def plan(self) -> Plan:
        return self.topology.plan(APPLICATION_ID)

    @cached_property
    def recording(self) -> Recording:
        """The recording in batches, without what is in no topic here: the records of Spark's shuffle."""
        whole = Recording.load(DATA / f"{self.scenario}.{self.seed}.json")
        whole = whole.in_batches_of(self.batch, rows_once=self.rows_once)
        topics = tuple(topic for topic in whole.topics if topic not in self.plan.internal_topics)
        outputs = [
            {**output, "timestamp": max(output["timestamp"], EARLIEST_WRITTEN)}
            for output in whole.outputs
            if output["topic"] in topics
        ]
        return replace(whole, topics=topics, outputs=outputs)

    @property
    def inputs(self) -> list[str]:
        """The topics it reads, on the broker."""
        return [self.prefix + topic for topic in (*self.plan.external_topics, *self.plan.global_part_of)]

    @property
    def outputs(self) -> list[str]:
        """The topics it writes, on the broker."""
        return [self.prefix + topic for topic in self.recording.topics]

    def entries(self, step: int) -> list[Entry]:
        """Give the records to write in a step; a step of the recorder's clock has none."""
        batches = self.recording.batches
        return [entry for entry in batches[step] if "topic" in entry] if step < len(batches) else []

    def played(self, found: Mapping[str, list[ConsumedRecord]], ends: list[Ends]) -> list[Entry]:
        """Spell what the topics hold as the recording does.

        Args:
            found: The records of the topics.
            ends: Where the topics ended after each step.
        """
        pieces = {topic: self._pieces(topic, found, ends) for topic in self.recording.topics}
        return collect(self.recording, lambda _batch: None, lambda topic: next(pieces[topic]))

    def _pieces(
        self, topic: str, found: Mapping[str, list[ConsumedRecord]], ends: list[Ends]
    ) -> Iterator[list[ps.Record]]:
        """Give the records of each step."""
        name, sink = self.prefix + topic, self._sink_to(topic)
        for start, end in pairwise([0, *(those[name] for those in ends)]):
            yield [
                ps.Record(read(sink.key, r.key), read(sink.value, r.value), r.timestamp, r.headers)
                for r in found[name][start:end]
            ]

    def _sink_to(self, topic: str) -> Sink:
        sinks = [n for sub in self.plan.subtopologies for n in sub.nodes.values() if isinstance(n, Sink)]
        chosen_per_record = (sink for sink in sinks if callable(sink.topic))
        return next((sink for sink in sinks if sink.topic == topic), None) or next(chosen_per_record)


class Steps:
    """Writes the steps of lanes, and sees when an application is done with each.

    Args:
        servers: Where the broker is.
        plan: The plan of the application that runs all lanes.
        lanes: The lanes.
    """

    def __init__(self, servers: str, plan: Plan, lanes: list[Lane]) -> None:
        self.plan = plan
        self.lanes = lanes
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 100})
        self._group = Consumer(
            {"bootstrap.servers": servers, "group.id": plan.application_id, "enable.auto.commit": False}
        )

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *exc: object) -> None:
        self._group.close()

    def create_topics(self) -> None:
        """Create the topics of all lanes, with one partition each."""
        names = chain.from_iterable([*lane.inputs, *lane.outputs] for lane in self.lanes)
        config = {"retention.ms": "-1"}
        for future in self._admin.create_topics([NewTopic(n, 1, 1, config=config) for n in names]).values():
            future.result(30)

    def __len__(self) -> int:
        return max(len(lane.recording.batches) for lane in self.lanes)

    def take(self, step: int) -> Ends:
        """Take a step; tell where the output topics end behind it."""
        for lane in self.lanes:
            self._write(lane, step)
        assert self._producer.flush(30) == 0
        eventually(self._is_done, f"step {step} to be processed", within_s=240)
        return self._ends(topic for lane in self.lanes for topic in lane.outputs)

    def _write(self, lane: Lane, step: int) -> None:
        for entry in lane.entries(step):
            key, value, timestamp, headers = row_of(entry)
            at = {"partition": 0, "timestamp": timestamp + EPOCH_ON_THE_WIRE}
            self._producer.produce(lane.prefix + entry["topic"], value, key, headers=list(headers), **at)

    def _is_done(self) -> bool:
        """Tell whether all topics are committed to their ends: first asked what is, then where the ends are by then."""
        topics = self.plan.broker_topics
        asked = self._group.committed([TopicPartition(topic, 0) for topic in topics], timeout=30)
        committed = {place.topic: max(place.offset, 0) for place in asked}
        return committed == self._ends(topics)

    def _ends(self, topics: Iterable[str]) -> Ends:
        latest = OffsetSpec.latest()
        asked = self._admin.list_offsets({TopicPartition(topic, 0): latest for topic in topics})
        return {place.topic: future.result(30).offset for place, future in asked.items()}
