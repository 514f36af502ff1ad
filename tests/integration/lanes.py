"""Recordings of Kafka Streams that one application replays side by side, each in its own lane.

A scenario's *lane* is its topology, its topics, and its recording, which `golden.replay` cuts into batches. A batch is a step of the
recorder's clock, or records that a task processes in the recorded order if it reads them all at once. `steps.py` schedules batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import millstream as ms
from golden.micro_batches import read
from golden.replay import APPLICATION_ID, DATA, Entry, Recording, collect
from golden.scenarios import SCENARIOS
from millstream.core.topology.nodes import Sink
from millstream.core.topology.plan import Plan
from millstream.testing.kafka import ConsumedRecord

EARLIEST_WRITTEN = 1
"""The timestamp of results at time 0, which librdkafka cannot write."""

Ends = dict[str, int]
"""The end offset of topics of one partition."""


@dataclass(frozen=True)
class Lane:
    """A scenario among others.

    Attributes:
        prefix: The prefix of its names.
        scenario: Its name.
        seed: Which of its recordings is played.
        batch: How many records a batch may have.
        rows_once: Whether a batch may change each row only once.
        clocked: Whether its results depend on the wall clock.
    """

    prefix: str
    scenario: str
    seed: int
    batch: int
    rows_once: bool
    clocked: bool

    @cached_property
    def topology(self) -> ms.Topology:
        return SCENARIOS[self.scenario].build()

    @cached_property
    def plan(self) -> Plan:
        return self.topology.plan(APPLICATION_ID)

    @cached_property
    def recording(self) -> Recording:
        """The recording in batches, without the records of Spark's shuffle, which are in no topic."""
        whole = Recording.load(DATA / f"{self.scenario}.{self.seed}.json")
        whole = whole.in_batches_of(
            self.batch, rows_once=self.rows_once, topics_together=self._is_read_by_one_task()
        )
        topics = tuple(topic for topic in whole.topics if topic not in self.plan.internal_topics)
        outputs = [
            {**output, "timestamp": max(output["timestamp"], EARLIEST_WRITTEN)}
            for output in whole.outputs
            if output["topic"] in topics
        ]
        return replace(whole, topics=topics, outputs=outputs)

    def _is_read_by_one_task(self) -> bool:
        """Return whether one task reads all topics; stateless parts run before the shuffle, partition by partition."""
        first, *others = self.plan.subtopologies
        return not (others or self.plan.global_parts or self.plan.runs_before_shuffle(first))

    @property
    def sources(self) -> list[str]:
        """The external topics that its tasks read, on the broker."""
        return [self.prefix + topic for topic in self.plan.external_topics]

    @property
    def inputs(self) -> list[str]:
        """The sources, and the topics of global stores."""
        return [*self.sources, *(self.prefix + topic for topic in self.plan.global_part_of)]

    @property
    def outputs(self) -> list[str]:
        """The topics that it writes, on the broker."""
        return [self.prefix + topic for topic in self.recording.topics]

    def entries(self, batch: int) -> list[Entry]:
        """Return the records of a batch; a step of the recorder's clock has none."""
        return [entry for entry in self.recording.batches[batch] if "topic" in entry]

    def times(self) -> list[int]:
        """Return the recorder's clock at each batch, in ms; at a step of the clock, the time after it."""
        now, times = 0, []
        for batch in self.recording.batches:
            now += batch[0].get("advance_wall_clock_ms", 0)
            times.append(now)
        return times

    def played(self, found: Mapping[str, list[ConsumedRecord]], ends: list[Ends]) -> list[Entry]:
        """Return the content of the topics in the form of the recording.

        Args:
            found: The records of the topics.
            ends: Where the topics ended after each batch.
        """
        pieces = {topic: self._pieces(topic, found, ends) for topic in self.recording.topics}
        return collect(self.recording, lambda _batch: None, lambda topic: next(pieces[topic]))

    def _pieces(
        self, topic: str, found: Mapping[str, list[ConsumedRecord]], ends: list[Ends]
    ) -> Iterator[list[ms.Record]]:
        """Return the records of each batch; records after the last batch belong to it."""
        name, sink = self.prefix + topic, self._sink_to(topic)
        for start, end in pairwise([0, *(counts[name] for counts in ends[:-1]), len(found[name])]):
            yield [
                ms.Record(read(sink.key, r.key), read(sink.value, r.value), r.timestamp, r.headers)
                for r in found[name][start:end]
            ]

    def _sink_to(self, topic: str) -> Sink:
        sinks = [n for sub in self.plan.subtopologies for n in sub.nodes.values() if isinstance(n, Sink)]
        chosen_per_record = (sink for sink in sinks if callable(sink.topic))
        return next((sink for sink in sinks if sink.topic == topic), None) or next(chosen_per_record)
