"""A task that idles for its inputs processes them like a merge of all records, however records, facts and restarts arrive."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.engine.records.readiness import FOREVER, NEVER_WAIT, InputFacts
from millstream.core.model.ids import TopicPartition
from unit.helpers import Host, forwarding, processor_topology, values

from .engines import Visits

TOPICS = ("a", "b", "c")
INPUTS = tuple(TopicPartition(topic, 0) for topic in TOPICS)
Taken = list[tuple[str, int]]
CONTENT = st.fixed_dictionaries({topic: st.lists(st.integers(0, 9), max_size=8) for topic in TOPICS})
BATCHES = st.lists(
    st.tuples(
        st.fixed_dictionaries({topic: st.integers(0, 4) for topic in TOPICS}),  # how many records arrive
        st.sampled_from(["lag", "until", "unknown"]),  # what the task knows about the remaining records
        st.booleans(),  # whether the task restarts
        st.integers(0, 30),  # how much time passes
    ),
    max_size=8,
)


def merged(content: dict[str, list[int]], *, whole: bool) -> Taken:
    """Repeatedly take the smallest head. Unless ``whole`` is set, stop when a topic is used up."""
    left = {topic: list(timestamps) for topic, timestamps in content.items()}
    taken: Taken = []
    while any(left.values()) and (whole or all(left.values())):
        timestamp, topic = min((timestamps[0], topic) for topic, timestamps in left.items() if timestamps)
        left[topic].pop(0)
        taken.append((topic, timestamp))
    return taken


class Feeder:
    """Feeds topics in pieces, and collects the records that the task processes."""

    def __init__(self, content: dict[str, list[int]], idle_ms: int) -> None:
        named = forwarding(lambda c, r: f"{c.record_metadata.topic} {r.timestamp}")  # type: ignore[union-attr]
        self.host = Host(processor_topology(named, topics=TOPICS), max_task_idle_ms=idle_ms)
        self.left = {topic: list(timestamps) for topic, timestamps in content.items()}
        self.now_ms = 0
        self.taken: Taken = []
        self.enforced = 0

    def batch(self, counts: dict[str, int], known: str, passed_ms: int) -> Any:
        for topic, count in counts.items():
            arrived, self.left[topic] = self.left[topic][:count], self.left[topic][count:]
            self.host.feed(topic, [(None, "x", timestamp) for timestamp in arrived])
        rest = {partition: self.left[partition.topic] for partition in INPUTS if self.left[partition.topic]}
        facts = InputFacts(
            INPUTS,
            {partition: len(left) for partition, left in rest.items()},
            {partition: left[0] for partition, left in rest.items()} if known == "until" else {},
            unknown=known == "unknown",
        )
        self.host.task.inform(facts)
        self.now_ms += passed_ms
        outcome = self.host.step(self.now_ms)
        for value in values(outcome):
            topic, timestamp = str(value).split()
            self.taken.append((topic, int(timestamp)))
        self.enforced += outcome.metrics.enforced
        return outcome

    def finish(self) -> None:
        """Feed the remaining records, and let every idle time pass."""
        self.batch(dict.fromkeys(TOPICS, 100), "lag", 0)
        for _ in range(20):
            self.batch({}, "lag", 1_000)


def test_with_unlimited_idling_a_task_processes_records_in_the_order_of_a_merge() -> None:
    visits = Visits()

    @settings(max_examples=150, deadline=None)
    @given(CONTENT, BATCHES)
    def run(content: dict[str, list[int]], batches: list[Any]) -> None:
        feeder = Feeder(content, FOREVER)
        for counts, known, restart, passed_ms in batches:
            outcome = feeder.batch(counts, known, passed_ms)
            assert feeder.taken == merged(content, whole=True)[: len(feeder.taken)]
            buffered = feeder.host.task.buffered_count()
            assert (outcome.waiting is None) == (buffered == 0)
            visits[f"waits: {outcome.waiting.reason}" if outcome.waiting else "empty"] += 1
            visits["restart with records"] += restart and buffered > 0
            if restart:
                feeder.host.restart()
        feeder.finish()
        assert feeder.taken == merged(content, whole=False)
        assert feeder.enforced == 0

    run()
    visits.demand(
        **{
            "waits: lag": 10,
            "waits: behind": 10,
            "waits: idle": 10,
            "waits: unknown lag": 10,
            "restart with records": 10,
        }
    )


def test_with_any_idling_no_record_is_lost_and_each_partition_keeps_its_order() -> None:
    visits = Visits()

    @settings(max_examples=100, deadline=None)
    @given(CONTENT, BATCHES, st.sampled_from([NEVER_WAIT, 0, 20]))
    def run(content: dict[str, list[int]], batches: list[Any], idle_ms: int) -> None:
        feeder = Feeder(content, idle_ms)
        for counts, known, restart, passed_ms in batches:
            feeder.batch(counts, known, passed_ms)
            if restart:
                feeder.host.restart()
        feeder.finish()
        for topic in TOPICS:
            assert [t for name, t in feeder.taken if name == topic] == content[topic]
        if feeder.enforced == 0:
            assert feeder.taken == merged(content, whole=True)
        visits["guess"] += feeder.enforced > 0
        visits["out of order"] += feeder.taken != merged(content, whole=True)

    run()
    visits.demand(**{"guess": 20, "out of order": 5})
