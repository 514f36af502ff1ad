"""Two hosts with one application id under exactly once, each with its own state directory and thus its own checkpoint."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.core.model.errors import OtherCheckpointError
from millstream.core.topology.topology import Topology
from millstream.drivers.kafka.marks import Mark, Marks
from millstream.edge.cli.commands import app as command_line
from millstream.testing.crash import Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram

from .helpers import Apps, committed_records, eventually, lag, values_by_key
from .topologies import counts_in_kafka, word_count

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(480)]

ONCE = {"processing_guarantee": "exactly_once"}


def topology_of(topics: Topics) -> Topology:
    return counts_in_kafka(topics.input, topics.output)


class Lines:
    """Lines for an input topic, and the expected results."""

    def __init__(self, apps: Apps, topic: str) -> None:
        self._produce = partial(apps.kafka.produce, topic)
        self._lines: list[str] = []

    def feed(self, count: int) -> None:
        more = [f"a b{n % 7}" for n in range(len(self._lines), len(self._lines) + count)]
        self._produce([(None, line) for line in more])
        self._lines += more

    def journals(self) -> dict[str, list[int]]:
        counts = Counter(word for line in self._lines for word in line.split())
        return {word: list(range(1, count + 1)) for word, count in counts.items()}

    @property
    def words(self) -> int:
        return sum(len(line.split()) for line in self._lines)


def names_in(directory: Path) -> frozenset[str]:
    return frozenset(path.name for path in directory.iterdir() if path.name.isdigit())


def marks_of(apps: Apps) -> dict[int, Mark]:
    return Marks({"bootstrap.servers": apps.kafka.bootstrap_servers}, apps.id, 10).read_marks()


def owners(apps: Apps) -> set[str]:
    return {mark.owner for mark in marks_of(apps).values()}


@contextmanager
def another_program(
    apps: Apps, home: Path, source: str, sink: str, **settings: Any
) -> Iterator[CrashedProgram]:
    """Run the application in another program, and kill it at the end."""
    job_settings = {
        "bootstrap_servers": apps.kafka.bootstrap_servers,
        "master": "local[2]",
        "statestore_cache_max_bytes": 0,
        **ONCE,
        **settings,
    }
    (home / "program").mkdir()
    program = CrashedProgram(
        home / "program", Job(apps.id, topology_of, Topics(source, sink, "ask", "contents"), job_settings)
    )
    program.start()
    try:
        yield program
    finally:
        program.kill()


def test_a_second_host_is_refused_unless_it_takes_over(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    topology, lines, other = counts_in_kafka(source, sink), Lines(apps, source), tmp_path / "other-host"
    lines.feed(300)
    first = apps.start(topology, shuffle_partitions=2, **ONCE)
    with pytest.raises(
        OtherCheckpointError, match=rf"{apps.id}' belongs to another checkpoint .* another host"
    ):
        apps.application(topology, state_dir=other, **ONCE).start()
    lines.feed(300)
    eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the first to go on as if nothing had been")

    taking_over = {
        "shuffle_partitions": 1,
        "on_other_checkpoint": "take_over",
    }  # fewer partitions than the first has
    with another_program(apps, tmp_path, source, sink, state_dir=str(other), **taking_over) as second:

        def ended() -> bool:
            lines.feed(5)
            return first.status().state == "failed"

        eventually(ended, "the first to notice", within_s=150)
        with pytest.raises(OtherCheckpointError, match=r"may no longer send .* has taken it over"):
            first.await_termination()
        lines.feed(300)
        # not the lag: when all lines are committed, their words may still be in the repartition topic
        eventually(
            lambda: len(committed_records(apps.kafka, sink)) >= lines.words,
            "the second to go on",
            within_s=180,
        )
        with pytest.raises(OtherCheckpointError, match="has been taken over from the checkpoint at"):
            apps.start(topology, on_other_checkpoint="take_over", **ONCE)
        assert second.stop(grace_s=60) == 0, second.last_words()
    assert values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64) == lines.journals()
    marks = marks_of(apps)
    assert (len(marks), len({mark.checkpoint for mark in marks.values()})) == (2, 1)


@pytest.mark.soak
def test_of_two_copies_of_one_checkpoint_only_the_one_started_later_continues(
    apps: Apps, tmp_path: Path
) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    topology, lines, other = counts_in_kafka(source, sink), Lines(apps, source), tmp_path / "copied"
    lines.feed(50)
    apps.run(topology, **ONCE)
    first = apps.start(topology, **ONCE)
    checkpoint = apps.home / apps.id / "checkpoint"
    batches = [checkpoint / "offsets", checkpoint / "commits"]
    eventually(lambda: len({names_in(each) for each in batches}) == 1, "a moment between micro-batches")
    shutil.copytree(checkpoint, other / apps.id / "checkpoint")
    before = owners(apps)
    with another_program(apps, tmp_path, source, sink, state_dir=str(other)) as second:
        eventually(lambda: not owners(apps) & before, "the second to own all partitions", within_s=150)
        lines.feed(50)
        eventually(lambda: first.status().state == "failed", "the first to notice", within_s=150)
        with pytest.raises(
            OtherCheckpointError, match="a later start on that checkpoint, or on a copy of it"
        ):
            first.await_termination()
        eventually(
            lambda: len(committed_records(apps.kafka, sink)) >= lines.words,
            "the second to go on",
            within_s=180,
        )
        assert second.stop(grace_s=60) == 0, second.last_words()
    assert values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64) == lines.journals()
    with pytest.raises(OtherCheckpointError, match=r"(is not the newest one|has delivered)"):
        apps.start(topology, **ONCE)


@pytest.mark.soak
def test_a_lost_checkpoint_does_not_cause_all_results_to_be_sent_again(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    apps.kafka.produce(source, [("k", "v")] * 10)
    topology = word_count(source, sink)
    apps.run(topology, **ONCE)
    shutil.rmtree(apps.home / apps.id)
    with pytest.raises(OtherCheckpointError, match="its checkpoint is lost"):
        apps.run(topology, **ONCE)
    with pytest.raises(OtherCheckpointError, match="only that checkpoint has the content of its stores"):
        apps.run(topology, on_other_checkpoint="take_over", **ONCE)
    assert len(committed_records(apps.kafka, sink)) == 10
    servers, home = apps.kafka.bootstrap_servers, str(apps.home)
    arguments = ["reset", apps.id, "--bootstrap-servers", servers, "--state-dir", home, "--yes"]
    assert CliRunner().invoke(command_line, arguments).exit_code == 0
    apps.run(topology, **ONCE)
    assert len(committed_records(apps.kafka, sink)) == 20
