"""Changelog topics: an application whose checkpoint and local state are gone goes on where it was, with equal results."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError

from .helpers import Apps, committed_records, lag, values_by_key
from .topologies import WindowCounts, counts_in_kafka, with_processor

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def lose_everything(apps: Apps) -> None:
    shutil.rmtree(apps.home / apps.id)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_counts_go_on_without_checkpoint_and_local_state(apps: Apps, guarantee: str) -> None:
    source, sink = apps.topic("lines", 3), apps.topic("counts", 2)
    lines = [f"a b{n % 7} c{n % 50}" for n in range(1_200)]
    for part in (lines[:500], lines[500:900], lines[900:]):
        apps.kafka.produce(source, [(None, line) for line in part])
        apps.run(
            counts_in_kafka(source, sink), processing_guarantee=guarantee, on_other_checkpoint="take_over"
        )
        assert lag(apps.kafka, apps.id, source) == 0
        lose_everything(apps)
    counts = values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)
    expected = Counter(word for line in lines for word in line.split())
    assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}


def test_stores_are_not_rebuilt_in_other_tasks(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)

    def counts(wide: int) -> ms.Topology:
        builder = ms.StreamsBuilder()
        stream = builder.stream(source)
        if wide:
            stream = stream.repartition(partitions=wide, name="wide")
        stream.group_by_key().count(store=ms.stores.options("c", changelog="kafka")).to_stream().to(
            sink, value=ms.serdes.int64
        )
        return builder.build()

    keys = [f"k{n}" for n in range(16)]
    apps.kafka.produce(source, [(key, "v") for key in keys])
    apps.run(counts(wide=0))
    lose_everything(apps)
    apps.kafka.produce(source, [(key, "v") for key in keys])
    with pytest.raises(IncompatibleTopologyError, match=r"'c'.* by its 1 partitions .* by key over 8"):
        apps.run(counts(wide=8))
    lose_everything(apps)
    apps.run(counts(wide=0))
    found = values_by_key(apps.kafka.consume(sink), ms.serdes.int64)
    assert found == {key: [1, 2] for key in keys}


def test_windows_go_on_with_their_time(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)
    store = ms.stores.window(
        "windows", ms.serdes.string, ms.serdes.int64, retention=60_000, size=10_000, changelog="kafka"
    )
    topology = with_processor(WindowCounts, source, sink, store, value=ms.serdes.int64)
    parts = [
        [("k", "x", 1_000), ("k", "x", 2_000), ("k", "x", 500_000)],
        [("k", "x", 501_000), ("k", "x", 3_000)],
    ]
    for part in parts:
        apps.kafka.produce(source, part)
        apps.run(topology, processing_guarantee="exactly_once", on_other_checkpoint="take_over")
        lose_everything(apps)
    counts = values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)
    assert counts == {"k@0": [1, 2], "k@500000": [1, 2]}  # 3,000 is expired: the store's time has survived


def test_a_store_that_gets_a_changelog_later_publishes_what_it_holds(apps: Apps) -> None:
    source, sink = apps.topic("lines", 2), apps.topic("counts", 1)
    apps.kafka.produce(source, [(None, "a b a")])
    apps.run(counts_in_kafka(source, sink, "spark"))
    apps.kafka.produce(source, [(None, "c")])
    apps.run(counts_in_kafka(source, sink, "kafka"))
    lose_everything(apps)
    apps.kafka.produce(source, [(None, "a b c")])
    apps.run(counts_in_kafka(source, sink, "kafka"))
    counts = values_by_key(apps.kafka.consume(sink), ms.serdes.int64)
    assert counts == {"a": [1, 2, 3], "b": [1, 2], "c": [1, 2]}


def test_state_without_offsets_is_refused(apps: Apps) -> None:
    source, sink = apps.topic("lines", 1), apps.topic("counts", 1)
    apps.kafka.produce(source, [(None, "a")])
    apps.run(counts_in_kafka(source, sink))
    lose_everything(apps)
    apps.kafka.tool("kafka-consumer-groups", "--delete", "--group", apps.id)
    with pytest.raises(IncompatibleTopologyError, match=r"no committed offsets.*millstream reset"):
        apps.run(counts_in_kafka(source, sink))
