"""The routing of records to tasks must match the checkpoint: changes that would separate keys from their state are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError
from millstream.core.model.ids import TopicPartition

from .helpers import Apps, eventually, latest
from .test_changing_topics import add_partitions, meeting, planned
from .topologies import key_count

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEYS = [f"k{i}" for i in range(16)]


def counting(source: str, sink: str, wide: int = 0) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream(source)
    if wide:
        stream = stream.repartition(partitions=wide, name="wide")
    stream.group_by_key().count(store="c").to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


def parity(partitions: Mapping[str, int]) -> Sequence[frozenset[TopicPartition]]:
    every = [TopicPartition(topic, p) for topic, count in partitions.items() for p in range(count)]
    return [frozenset(partition for partition in every if partition.partition % 2 == odd) for odd in (0, 1)]


def halves(partitions: Mapping[str, int]) -> Sequence[frozenset[TopicPartition]]:
    every = [(TopicPartition(t, p), p < n / 2) for t, n in partitions.items() for p in range(n)]
    return [
        frozenset(partition for partition, first in every if first is in_first_half)
        for in_first_half in (True, False)
    ]


def halves_of_four(partitions: Mapping[str, int]) -> Sequence[frozenset[TopicPartition]]:
    """The first two and the last two of four partitions; new partitions belong to the last."""
    every = [TopicPartition(topic, p) for topic, count in partitions.items() for p in range(count)]
    return [
        frozenset(partition for partition in every if (partition.partition < 2) is first)
        for first in (True, False)
    ]


def counts(apps: Apps, sink: str) -> set[int]:
    return set(latest(apps.kafka.consume(sink), ms.serdes.int64).values())


def check_refused(apps: Apps, topology: ms.Topology, message: str) -> None:
    """Check that a run of the topology with this checkpoint is refused."""
    with pytest.raises(IncompatibleTopologyError, match=message):
        apps.run(topology)


def test_adding_changing_or_removing_a_repartition_before_a_count_is_refused(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    apps.kafka.produce(source, [(key, "v") for key in KEYS])
    apps.run(counting(source, sink))
    apps.kafka.produce(source, [(key, "v") for key in KEYS])
    message = (
        rf"store 'c'.*'{source}' by its 1 partitions and would come from .*wide-repartition' by key over 8"
    )
    check_refused(apps, counting(source, sink, wide=8), message)
    apps.run(counting(source, sink))
    assert counts(apps, sink) == {2}

    other = Apps(apps.kafka, f"{apps.id}-wide", apps.home)
    sink = other.topic("out", 1)
    other.run(counting(source, sink, wide=8))
    check_refused(other, counting(source, sink, wide=4), "had 8 partitions and would have 4")
    check_refused(other, counting(source, sink), "by key over 8 .* by its 1 partitions")
    other.kafka.produce(source, [(key, "v") for key in KEYS])
    other.run(counting(source, sink, wide=8))
    assert counts(other, sink) == {3}
    assert "routing" in planned(other)


def test_a_grouper_that_moves_partitions_to_other_tasks_is_refused(apps: Apps) -> None:
    source, sink = apps.topic("in", 4), apps.topic("out", 1)
    topology = key_count(source, sink)
    apps.kafka.produce(source, [(key, "v") for key in KEYS])
    running = apps.start(topology, partition_grouper=halves, metadata_max_age_ms=200)
    eventually(lambda: len(apps.kafka.consume(sink)) == len(KEYS), "the first counts")
    add_partitions(apps, source, 6)
    with pytest.raises(
        IncompatibleTopologyError, match=rf"partition 2 of '{source}' was in task 1 .* task 0"
    ):
        running.await_termination(60)
    assert running.status().state == "failed"
    for grouper in (halves, parity):
        with pytest.raises(IncompatibleTopologyError, match=rf"of '{source}' was in task"):
            apps.run(topology, partition_grouper=grouper)

    partition_of_key = {record.key: record.partition for record in apps.kafka.consume(source)}
    for (
        key,
        partition,
    ) in partition_of_key.items():  # to the same partitions as before: a producer may choose any
        apps.kafka.produce(source, [(key, "v")], partition=partition)
    apps.kafka.produce(source, [("new", "v"), ("new", "v")], partition=5)
    apps.run(topology, partition_grouper=halves_of_four)
    assert counts(apps, sink) == {2}
    assert planned(apps)["routing"]["routes"] == {source: [[0, 0, 1, 1, 1, 1], "producer"]}


def test_an_edit_that_would_lose_buffered_records_is_refused(apps: Apps) -> None:
    left, right, sink = apps.topic("left", 1), apps.topic("right", 1), apps.topic("out", 1)
    both = meeting(left, right, sink)
    apps.kafka.produce(left, [("a", "v"), ("b", "v")])
    running = apps.start(both, max_task_idle_ms=600_000)
    eventually(lambda: running.status().buffered.get(left) == 2, "records that wait for the other topic")
    running.stop()
    edited = ms.StreamsBuilder()
    edited.stream(right).group_by_key().count(store="both").to_stream().to(sink, value=ms.serdes.int64)
    with pytest.raises(IncompatibleTopologyError, match=rf"buffered 2 records of '{left}'.*until='end'"):
        apps.run(edited.build())
    apps.run(both, max_task_idle_ms=600_000)
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 1, "b": 1}
    apps.kafka.produce(right, [("a", "v")])
    apps.run(edited.build())
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 2, "b": 1}
