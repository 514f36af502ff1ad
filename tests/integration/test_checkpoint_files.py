"""The cost of a micro-batch in its checkpoint: it writes the changes of the state, and starts few processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.drivers.spark.driver.spark_session import _ONE_ATTEMPT, configured
from millstream.drivers.spark.driver.wanted import FILE_MANAGER, QUERY_CONF

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


def test_settings_of_the_session_are_restored(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.getAll
    with configured(spark, {}, 2, tmp_path.as_uri()):
        during = spark.conf.getAll
    assert spark.conf.getAll == before
    assert set(QUERY_CONF.items()) <= set(during.items())
    assert during[FILE_MANAGER].endswith(".FileSystemBasedCheckpointFileManager")


def test_a_remote_checkpoint_keeps_the_file_manager_of_spark(spark: SparkSession) -> None:
    with configured(spark, {}, 2, "hdfs://elsewhere/checkpoint"):
        assert FILE_MANAGER not in spark.conf.getAll


def test_masters_with_several_attempts_per_task_are_recognised() -> None:
    assert [
        _ONE_ATTEMPT.fullmatch(master) is not None
        for master in (
            "local",
            "local[*]",
            "local[2]",
            "local[2, 1]",
            "local[2,4]",
            "local-cluster[2,1,1024]",
            "spark://a:1",
        )
    ] == [True, True, True, True, False, False, False]


def test_a_repeated_micro_batch_replaces_the_state_of_its_first_attempt(apps: Apps) -> None:
    source, sink = apps.topic("in"), apps.topic("out")
    builder = ms.StreamsBuilder()
    counts = builder.stream(source).group_by_key().count(store="counts")
    counts.to_stream().to(sink, value=ms.serdes.int64)
    for words in (["a"], ["b", "b"], ["c"] * 3):
        apps.kafka.produce(source, [(word, "v") for word in words])
        apps.run(builder.build(), shuffle_partitions=1)
    checkpoint = apps.home / apps.id / "checkpoint"
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    state = checkpoint / "state/0/0"
    # As if the last micro-batch had an attempt with other results, which ended after it wrote its state.
    (checkpoint / f"commits/{last}").unlink()
    (checkpoint / f"commits/.{last}.crc").unlink()
    for name in ("{}.changelog", ".{}.changelog.crc"):
        shutil.copy(state / name.format(last), state / name.format(last + 1))
    apps.run(builder.build(), shuffle_partitions=1)
    shutil.rmtree(apps.local_state)
    apps.kafka.produce(source, [("a", "v"), ("b", "v"), ("c", "v")])
    apps.run(builder.build(), shuffle_partitions=1)
    found = values_by_key(apps.kafka.consume(sink), ms.serdes.int64)
    assert {key: max(values) for key, values in found.items()} == {"a": 2, "b": 3, "c": 4}


def test_a_micro_batch_writes_only_changes_and_starts_few_processes(
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
    assert [name for name in state if name.endswith(".zip")] == ["1.zip"]  # the first version is a snapshot
    assert {f"{version}.changelog" for version in range(1, BATCHES + 1)} <= set(state)
    assert not [command for command in commands if command.startswith("readlink")]
    files = [command for command in commands if "/offsets/." in command or "/commits/." in command]
    assert len(files) <= 2 * 2 * (BATCHES + 1)  # `chmod` for a file and for its checksum


@pytest.mark.parametrize("re_keyed", [False, True])
def test_shuffled_rows_have_checksums_only_after_functions_of_the_user(apps: Apps, re_keyed: bool) -> None:
    source, sink = apps.topic("in"), apps.topic("out")
    builder = ms.StreamsBuilder()
    stream = builder.stream(source)
    grouped = stream.group_by(lambda key, value: value) if re_keyed else stream.group_by_key()
    grouped.count(store="counts").to_stream().to(sink, value=ms.serdes.int64)
    apps.kafka.produce(source, [("k", "v")])
    query = apps.run(builder.build(), shuffle_partitions=1)._run.query.current
    assert query is not None
    execution: Any = query._jsq.streamingQuery().lastExecution()
    assert checksums_of(execution.executedPlan()) == [1 if re_keyed else 0]


def checksums_of(plan: Any) -> list[int]:
    """Return, for each shuffle of a physical plan, the number of partitions whose rows have checksums."""
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    below = [count for child in children for count in checksums_of(child)]
    exchange = plan.getClass().getSimpleName() == "ShuffleExchangeExec"
    return [len(plan.shuffleDependency().rowBasedChecksums()), *below] if exchange else below
