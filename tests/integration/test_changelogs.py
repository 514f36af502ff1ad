"""Changelog topics: an application that has lost its checkpoint and local state continues with the same results."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError
from proofs.sizes import sized

from .helpers import Apps, committed_records, eventually, lag, values_by_key
from .topologies import Tally, WindowCounts, counts_in_kafka, with_processor

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def lose_checkpoint_and_local_state(apps: Apps) -> None:
    shutil.rmtree(apps.home / apps.id)


@pytest.mark.parametrize(
    ("guarantee", "parallelism"),
    [*sized([], [("at_least_once", 1), ("exactly_once", 1)]), ("exactly_once", 4)],
)
def test_counts_continue_without_checkpoint_and_local_state(
    apps: Apps, guarantee: str, parallelism: int
) -> None:
    source, sink = apps.topic("lines", 3), apps.topic("counts", 2)
    lines = [f"a b{n % 7} c{n % 50}" for n in range(1_200)]
    for part in (lines[:500], lines[500:900], lines[900:]):
        apps.kafka.produce(source, [(None, line) for line in part])
        apps.run(
            counts_in_kafka(source, sink),
            processing_guarantee=guarantee,
            parallelism=parallelism,
            on_other_checkpoint="take_over",
        )
        assert lag(apps.kafka, apps.id, source) == 0
        lose_checkpoint_and_local_state(apps)
    counts = values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)
    expected = Counter(word for line in lines for word in line.split())
    assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}


def test_restoring_a_store_into_other_tasks_is_refused(apps: Apps) -> None:
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
    lose_checkpoint_and_local_state(apps)
    apps.kafka.produce(source, [(key, "v") for key in keys])
    with pytest.raises(IncompatibleTopologyError, match=r"'c'.* by its 1 partitions .* by key over 8"):
        apps.run(counts(wide=8))
    lose_checkpoint_and_local_state(apps)
    apps.run(counts(wide=0))
    found = values_by_key(apps.kafka.consume(sink), ms.serdes.int64)
    assert found == {key: [1, 2] for key in keys}


def test_a_window_store_keeps_its_stream_time(apps: Apps) -> None:
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
        lose_checkpoint_and_local_state(apps)
    counts = values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)
    assert counts == {
        "k@0": [1, 2],
        "k@500000": [1, 2],
    }  # the record at 3,000 is expired, so the stream time has survived


def test_a_store_that_gets_a_changelog_later_publishes_its_content(apps: Apps) -> None:
    source, sink = apps.topic("lines", 2), apps.topic("counts", 1)
    apps.kafka.produce(source, [(None, "a b a")])
    apps.run(counts_in_kafka(source, sink, "spark"))
    apps.kafka.produce(source, [(None, "c")])
    apps.run(counts_in_kafka(source, sink, "kafka"))
    lose_checkpoint_and_local_state(apps)
    apps.kafka.produce(source, [(None, "a b c")])
    apps.run(counts_in_kafka(source, sink, "kafka"))
    counts = values_by_key(apps.kafka.consume(sink), ms.serdes.int64)
    assert counts == {"a": [1, 2, 3], "b": [1, 2], "c": [1, 2]}


def test_state_without_committed_offsets_is_refused(apps: Apps) -> None:
    source, sink = apps.topic("lines", 1), apps.topic("counts", 1)
    apps.kafka.produce(source, [(None, "a")])
    apps.run(counts_in_kafka(source, sink))
    lose_checkpoint_and_local_state(apps)
    apps.kafka.tool("kafka-consumer-groups", "--delete", "--group", apps.id)
    with pytest.raises(IncompatibleTopologyError, match=r"no committed offsets.*millstream reset"):
        apps.run(counts_in_kafka(source, sink))


@pytest.mark.parametrize(
    ("guarantee", "parallelism"),
    [("exactly_once", 1), *sized([], [("at_least_once", 4), ("exactly_once", 4)])],
)
def test_records_finished_beyond_the_committed_offset_are_not_processed_again(
    apps: Apps, tmp_path: Path, guarantee: str, parallelism: int
) -> None:
    """One call hangs, so the group's offset stays at its record; the commits topic has the records that were finished after it."""
    source, sink = apps.topic("words", 1), apps.topic("tallies", 1)
    journal, release = tmp_path / "calls", tmp_path / "go on"

    async def call(value: str) -> str:
        with journal.open("a") as calls:
            calls.write(f"{value} {os.getpid()}\n")
        while value == "0" and not release.exists():
            await asyncio.sleep(0.05)
        return value

    builder = ms.StreamsBuilder()
    tally = ms.stores.key_value("tally", ms.serdes.string, ms.serdes.int64, changelog="kafka")
    builder.add_state_store(tally)
    stream, in_kafka = builder.stream(source), ms.stores.options("calls", changelog="kafka")
    answers = stream.map_values_async(call, store=in_kafka)
    answers.process(Tally, stores=["tally"], key_local=True).to(sink, value=ms.serdes.int64)
    topology, settings = builder.build(), {"processing_guarantee": guarantee, "parallelism": parallelism}

    apps.kafka.produce(source, [(f"w{number % 40}", f"{number}") for number in range(200)])
    with apps.start(topology, **settings):
        eventually(lambda: len(committed_records(apps.kafka, sink)) == 195, "the results of the other keys")
        eventually(lambda: apps.kafka.committed(apps.id, source) == {0: 0}, "the offset")
    lose_checkpoint_and_local_state(apps)
    before = journal.read_text().splitlines()
    os.kill(int(before[0].split()[1]), signal.SIGKILL)  # the host with the async worker is lost as well
    release.touch()
    apps.run(topology, on_other_checkpoint="take_over", max_batch_records=60, **settings)
    repeated = journal.read_text().splitlines()[len(before) :]
    assert [int(line.split()[0]) for line in repeated] == [0, 40, 80, 120, 160]
    tallies = values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)
    assert tallies == {f"w{number}": [1, 2, 3, 4, 5] for number in range(40)}
    assert lag(apps.kafka, apps.id, source) == 0
