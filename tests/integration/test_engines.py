"""Every store engine on Spark: several micro-batches, a change of the engine, and the messages about a lost local copy."""

from __future__ import annotations

import logging
import shutil

import pytest

import millstream as ms

from .helpers import Apps, latest

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(280)]

KEYS = 120_000


def counting(source: str, sink: str) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counts = (
        builder.stream(source, key=ms.serdes.string, value=ms.serdes.string)
        .group_by_key()
        .count(store="counts")
    )
    counts.to_stream().map_values(str).to(sink, value=ms.serdes.string)
    return builder.build()


@pytest.mark.soak
def test_state_survives_a_change_of_the_store_engine_and_a_lost_local_copy(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    source, sink = apps.topic("input", 1), apps.topic("output", 1)
    topology = counting(source, sink)
    apps.kafka.produce(source, [(b"%d" % n, b"x") for n in range(KEYS)])
    apps.run(topology, store_engine="rocksdb", max_batch_records=50_000, shuffle_partitions=1)
    rounds = ["rocksdb", "memory", "lmdb"]
    for count, engine in enumerate(rounds, 2):
        apps.kafka.produce(source, [(b"%d" % n, b"x") for n in range(3)])
        running = apps.run(topology, store_engine=engine, max_batch_records=1, shuffle_partitions=1)
        assert {path.name for task in apps.local_state.iterdir() for path in task.iterdir()} == {engine}
        values = latest(apps.kafka.consume(sink)[-3:])
        assert values == {str(n): str(count) for n in range(3)}
        # the first batch of a run restores the changes of the last one; a new engine needs all changes
        assert (running.metrics()["restored_changes"] >= KEYS) == (engine != "rocksdb")
    shutil.rmtree(apps.local_state)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "millstream.application"):
        apps.run(topology, shuffle_partitions=1)
    lines = [line for line in caplog.messages if "store counts" in line]
    assert "restoring from nothing" in lines[0]
    assert "because the local copy is missing: 0 of 120,0" in lines[0]
    assert "restored from nothing" in lines[-1]
