"""What a micro-batch costs in its checkpoint: the changes of the state, and few processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.drivers.spark.submit.session import configured
from millstream.drivers.spark.submit.wanted import FILE_MANAGER, QUERY_CONF

from .helpers import Apps, values_by_key

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BATCHES = 4


@contextmanager
def started_processes(spark: SparkSession, recording: Path) -> Iterator[list[str]]:
    """Record the programs that the JVM starts; the list is filled at the end."""
    jvm: Any = spark._jvm
    recorder = jvm.jdk.jfr.Recording()
    recorder.enable("jdk.ProcessStart")
    recorder.start()
    commands: list[str] = []
    yield commands
    recorder.stop()
    recorder.dump(jvm.java.io.File(str(recording)).toPath())
    recorder.close()
    events = jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(jvm.java.io.File(str(recording)).toPath())
    commands += [event.getString("command") for event in events]


def test_settings_of_the_session_are_given_back(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.getAll
    with configured(spark, {}, 2, tmp_path.as_uri()):
        during = spark.conf.getAll
    assert spark.conf.getAll == before
    assert set(QUERY_CONF.items()) <= set(during.items())
    assert during[FILE_MANAGER].endswith(".FileSystemBasedCheckpointFileManager")


def test_a_checkpoint_elsewhere_keeps_the_file_manager_of_spark(spark: SparkSession) -> None:
    with configured(spark, {}, 2, "hdfs://elsewhere/checkpoint"):
        assert FILE_MANAGER not in spark.conf.getAll


def test_a_micro_batch_writes_changes_and_starts_few_processes(
    apps: Apps, spark: SparkSession, tmp_path: Path
) -> None:
    source, sink = apps.topic("in"), apps.topic("out")
    builder = ms.StreamsBuilder()
    counts = builder.stream(source).group_by_key().count(store="counts")
    counts.to_stream().to(sink, value=ms.serdes.int64)
    apps.kafka.produce(source, [("k", "v")] * 10 * BATCHES)
    with started_processes(spark, tmp_path / "processes.jfr") as commands:
        apps.run(builder.build(), max_batch_records=10, shuffle_partitions=1)
    assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"k": list(range(1, 41))}
    state = [path.name for path in (apps.home / apps.id / "checkpoint/state/0/0").iterdir()]
    assert [name for name in state if name.endswith(".zip")] == ["1.zip"]  # a snapshot begins it
    assert {f"{version}.changelog" for version in range(1, BATCHES + 1)} <= set(state)
    assert not [command for command in commands if command.startswith("readlink")]
    files = [command for command in commands if "/offsets/." in command or "/commits/." in command]
    assert len(files) <= 2 * 2 * (BATCHES + 1)  # `chmod` for a file and for its checksum
