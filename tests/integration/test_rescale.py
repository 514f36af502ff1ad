"""More or fewer Spark partitions for an application with state: every count continues from its value."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import millstream as ms
from millstream.core.model.errors import ApplicationRunningError, SettingsError
from millstream.drivers.spark.driver.checkpoint import (
    CheckpointProgress,
    HadoopFiles,
    LocalFiles,
    progress_of,
)
from millstream.edge.cli.commands import app as command_line

from .helpers import Apps, latest
from .topologies import word_count

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class WordCount:
    """A word count application, the expected counts, and its checkpoint."""

    def __init__(self, apps: Apps) -> None:
        self.apps = apps
        self.lines, self.counts = apps.topic("lines", 4), apps.topic("counts", 2)
        self.topology = word_count(self.lines, self.counts)
        self.expected: Counter[str] = Counter()

    @property
    def checkpoint(self) -> Path:
        return self.apps.home / self.apps.id / "checkpoint"

    def progress(self) -> CheckpointProgress:
        found = progress_of(LocalFiles(self.checkpoint))
        assert found is not None
        return found

    def run(self, **settings: object) -> int:
        """Count more words, and return the number of changes that were restored to local copies."""
        first = sum(self.expected.values())
        words = [f"w{(first + i) % 60}" for i in range(120)]
        self.expected.update(words)
        self.apps.kafka.produce(self.lines, [(None, word) for word in words])
        return self.apps.run(self.topology, **settings).metrics()["restored_changes"]

    def has_expected_counts(self) -> bool:
        found = {r.key.decode(): int.from_bytes(r.value, "big") for r in self.apps.kafka.consume(self.counts)}
        written = sum(self.apps.kafka.end_offsets(self.counts).values())
        return found == dict(self.expected) and written == sum(self.expected.values())

    def rescale(self, *options: str) -> tuple[int, str]:
        done = CliRunner().invoke(
            command_line, ["rescale", self.apps.id, "--state-dir", str(self.apps.home), *options]
        )
        return done.exit_code, done.output


@pytest.fixture
def counting(apps: Apps) -> WordCount:
    return WordCount(apps)


def test_rescaling_from_four_to_eight_to_three_partitions_loses_nothing(
    counting: WordCount, spark: SparkSession
) -> None:
    counting.run(shuffle_partitions=4)
    assert counting.progress().shuffle_partitions == 4
    assert counting.rescale("--partitions", "8", "--dry-run")[0] == 0
    assert counting.progress().shuffle_partitions == 4
    for partitions in (8, 3):
        code, output = counting.rescale("--partitions", str(partitions))
        assert (code, "Done in" in output) == (0, True), output
        assert counting.progress().shuffle_partitions == partitions
        restored = counting.run()  # without the setting, the number of the checkpoint is kept
        assert (counting.has_expected_counts(), restored) == (True, 0)
    remote = HadoopFiles(spark, counting.checkpoint.as_uri())  # as for HDFS or S3
    assert progress_of(remote) == counting.progress()
    assert counting.rescale("--partitions", "3") == (
        0,
        "The state already has 3 partitions: nothing to do.\n",
    )
    remote.delete()
    assert remote.names("offsets") == []
    assert not remote.exists()


@pytest.mark.soak
def test_a_start_with_another_partition_count_fails_keeps_it_or_moves_the_state(
    counting: WordCount, caplog: pytest.LogCaptureFixture
) -> None:
    counting.run(shuffle_partitions=2)
    with pytest.raises(SettingsError, match=r"has 2 shuffle partitions, but shuffle_partitions=3"):
        counting.apps.run(counting.topology, shuffle_partitions=3, on_changed_shuffle_partitions="fail")
    counting.run(shuffle_partitions=3, on_changed_shuffle_partitions="keep")
    assert counting.progress().shuffle_partitions == 2
    with caplog.at_level(logging.WARNING, "millstream.application"):
        counting.run(shuffle_partitions=3)
    assert "moved the state of the checkpoint to 3 partitions" in caplog.text
    assert (counting.progress().shuffle_partitions, counting.has_expected_counts()) == (3, True)


def test_an_interrupted_micro_batch_is_completed_before_rescaling(counting: WordCount) -> None:
    counting.run(shuffle_partitions=2)
    forget_last_commit(counting)
    code, output = counting.rescale("--partitions", "3")
    assert code == 1
    assert "was not completed" in output
    running = counting.apps.start(counting.topology, shuffle_partitions=3)
    assert (
        counting.progress().shuffle_partitions == 3
    )  # one start completes the micro-batch, moves the state, and runs
    with pytest.raises(ApplicationRunningError, match=r"process \d+ on .* \(running\)"):
        counting.apps.start(counting.topology)
    code, output = counting.rescale("--partitions", "2")
    assert (code, "is in use" in output) == (1, True)
    running.stop()
    counting.run()
    found = latest(counting.apps.kafka.consume(counting.counts), ms.serdes.int64)
    assert found == dict(counting.expected)


@pytest.mark.soak
def test_an_interrupted_rescale_is_completed_by_the_next_start(counting: WordCount) -> None:
    counting.run(shuffle_partitions=2)
    counting.rescale("--partitions", "4")
    forget_last_commit(counting)
    assert counting.progress().rescaling
    code, output = counting.rescale("--partitions", "3")
    assert (code, "was interrupted" in output) == (1, True)
    counting.run()
    assert not counting.progress().rescaling
    assert (counting.progress().shuffle_partitions, counting.has_expected_counts()) == (4, True)


def forget_last_commit(counting: WordCount) -> None:
    """Put the checkpoint into its state after a crash just before the last commit."""
    last = counting.checkpoint / "commits" / str(counting.progress().batch)
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
