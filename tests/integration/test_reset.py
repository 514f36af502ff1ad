"""`millstream reset` on a real broker: its output, what it deletes and keeps, and where the next start begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.drivers.kafka.broker import Broker
from millstream.edge.cli.commands import app as command_line

from .helpers import Apps, eventually, lag, latest, values_by_key
from .topologies import key_count, people_per_region, shout

pytestmark = pytest.mark.broker


def reset(apps: Apps, *options: str, answer: str = "") -> tuple[int, str]:
    servers, home = apps.kafka.bootstrap_servers, str(apps.home)
    arguments = ["reset", apps.id, "--bootstrap-servers", servers, "--state-dir", home, *options]
    done = CliRunner().invoke(command_line, arguments, input=answer)
    return done.exit_code, done.output


def rows(output: str) -> dict[int, tuple[str, str]]:
    """Return two columns of the printed table for each partition: processed up to, begins at."""
    cells = [line.split() for line in output.splitlines() if line.startswith("  ")]
    return {int(c[1]): (c[2], c[3]) for c in cells if len(c) >= 4 and c[1].isdigit()}


@pytest.mark.spark
def test_a_reset_asks_for_confirmation_and_empties_the_stores(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)
    topology = key_count(source, sink)
    apps.kafka.produce(source, [("a", "x")] * 3, partition=0)
    apps.kafka.produce(source, [("b", "x")] * 2, partition=1)
    apps.run(topology)
    checkpoint, copies = apps.home / apps.id / "checkpoint", apps.local_state

    code, output = reset(apps, "--dry-run")
    assert (code, rows(output)) == (0, {0: ("3", "0"), 1: ("2", "0")})
    assert checkpoint.as_uri() in output
    assert str(copies) in output
    assert "the stores counts will be empty" in output
    assert "Nothing was changed (--dry-run)." in output
    code, output = reset(apps, answer="n\n")
    assert (code, "Nothing was changed.\n" in output) == (0, True)
    assert checkpoint.is_dir()
    assert copies.is_dir()

    code, output = reset(apps, "--to-offset", "2", "--yes")
    assert (code, rows(output)) == (0, {0: ("3", "2"), 1: ("2", "2")})
    assert not checkpoint.exists()
    assert not copies.exists()
    apps.run(topology)
    assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2, 3, 1], "b": [1, 2]}
    assert lag(apps.kafka, apps.id, source) == 0


@pytest.mark.spark
def test_a_reset_is_refused_while_the_application_runs(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    running = apps.start(key_count(source, sink))
    code, output = reset(apps, "--yes")
    assert (code, "is in use" in output) == (1, True)
    running.stop()
    assert reset(apps, "--dry-run")[0] == 0


@pytest.mark.spark
def test_the_mark_of_a_reset_is_valid_for_one_start(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    topology = key_count(source, sink)
    apps.kafka.produce(source, [("a", "x")] * 3)
    apps.run(topology)
    reset(apps, "--to-latest", "--yes")
    apps.run(topology)
    assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2, 3]}
    apps.kafka.produce(source, [("a", "x")])
    apps.run(topology)
    assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2, 3, 1]}
    lose_checkpoint(apps)  # not a reset: the group's offsets are no longer those of empty stores
    apps.run(topology)
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 4}


@pytest.mark.spark
def test_internal_topics_are_deleted_and_created_again(apps: Apps) -> None:
    people, sink = apps.topic("people", 1), apps.topic("out", 1)
    topology = people_per_region(people, sink)
    apps.kafka.produce(people, [("ann", "north"), ("bob", "south"), ("cy", "north")])
    apps.run(topology)
    internal = f"{apps.id}-per-region-repartition"
    other = f"{apps.id}-two-x-repartition"
    apps.kafka.create_topic(other, 1)
    commit_an_offset(apps, f"{apps.id}-two", people)
    code, output = reset(apps, "--yes")
    assert code == 0, output
    assert f"internal topic  {internal} (1 partition)" in output
    assert f"Not deleted: {other}, which seems to belong to the group '{apps.id}-two'" in output
    assert sum(apps.kafka.committed(apps.id, people).values()) == 0
    apps.run(topology)
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"north": 2, "south": 1}
    apps.kafka.delete_topic(other)


@pytest.mark.spark
def test_one_of_two_input_topics_can_be_reset(apps: Apps) -> None:
    left, right, sink = apps.topic("left", 1), apps.topic("right", 1), apps.topic("out", 1)
    builder = ms.StreamsBuilder()
    builder.stream([left, right]).group_by_key().count(store="both").to_stream().to(
        sink, value=ms.serdes.int64
    )
    topology = builder.build()
    apps.kafka.produce(left, [("l", "x")] * 3)
    apps.kafka.produce(right, [("r", "x")] * 3)
    apps.run(topology)
    code, output = reset(apps, "--input-topic", left, "--shift-by", "-1", "--yes")
    assert code == 0
    assert any(right in line and "(stays)" in line for line in output.splitlines())
    apps.run(topology)
    assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"l": [1, 2, 3, 1], "r": [1, 2, 3]}


@pytest.mark.spark
def test_an_application_without_a_checkpoint_can_be_reset(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    apps.kafka.produce(source, [("a", f"{i}", 1_000 * (i + 1)) for i in range(4)])
    code, output = reset(apps, "--yes")
    assert (code, "was not found: it has no checkpoint here" in output) == (1, True)
    code, output = reset(apps, "--input-topic", source, "--to-datetime", "1970-01-01T00:00:03Z", "--yes")
    assert (code, rows(output)) == (0, {0: ("-", "2")})
    apps.run(shout(source, sink))
    assert values_by_key(apps.kafka.consume(sink)) == {"a": ["2", "3"]}
    lose_checkpoint(apps)
    code, output = reset(apps, "--shift-by", "-100", "--dry-run")
    assert (code, rows(output)) == (0, {0: ("4", "0")})
    assert "(begins at 0)" in output


class TestRefusedOptions:
    def test_two_start_positions_are_refused(self, apps_without_spark: Apps) -> None:
        code, output = reset(apps_without_spark, "--to-latest", "--shift-by", "1")
        assert (code, "exclude each other" in output) == (1, True)

    def test_a_topic_that_does_not_exist_is_refused(self, apps_without_spark: Apps) -> None:
        code, output = reset(apps_without_spark, "--input-topic", "nowhere", "--to-latest")
        assert (code, "topic 'nowhere' does not exist on the broker" in output) == (1, True)

    def test_a_shift_without_a_committed_offset_is_refused(self, apps_without_spark: Apps) -> None:
        source = apps_without_spark.topic("in", 1)
        code, output = reset(apps_without_spark, "--input-topic", source, "--shift-by", "5")
        assert (code, "cannot be shifted" in output) == (1, True)

    def test_an_internal_topic_of_another_application_is_refused(self, apps_without_spark: Apps) -> None:
        source = apps_without_spark.topic("in", 1)
        code, output = reset(apps_without_spark, "--input-topic", source, "--internal-topic", source)
        assert (code, "is not an internal topic of this application" in output) == (1, True)

    def test_a_missing_file_is_refused(self, apps_without_spark: Apps) -> None:
        code, output = reset(apps_without_spark, "--from-file", "/nowhere/offsets.csv")
        assert (code, "'/nowhere/offsets.csv' cannot be read" in output) == (1, True)


def test_offsets_are_read_from_a_file(apps_without_spark: Apps, tmp_path: Path) -> None:
    source = apps_without_spark.topic("in", 2)
    apps_without_spark.kafka.produce(source, [("a", "x")] * 5, partition=1)
    file = tmp_path / "offsets.csv"
    file.write_text(f"{source},1,4\n")
    code, output = reset(apps_without_spark, "--input-topic", source, "--from-file", str(file), "--yes")
    assert (code, rows(output)) == (0, {0: ("-", "0"), 1: ("-", "4")})
    assert apps_without_spark.kafka.committed(apps_without_spark.id, source) == {0: 0, 1: 4}


def lose_checkpoint(apps: Apps) -> None:
    shutil.rmtree(apps.home / apps.id / "checkpoint")


def commit_an_offset(apps: Apps, group: str, topic: str) -> None:
    broker = Broker({"bootstrap.servers": apps.kafka.bootstrap_servers}, group)
    broker.commit({ms.TopicPartition(topic, 0): 0})
    eventually(lambda: group in broker.groups(), f"the group {group}")
