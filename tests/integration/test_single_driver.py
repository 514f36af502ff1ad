"""Two drivers of one application under at least once, without standby: only one of them runs, on any hosts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.core.model.errors import ApplicationRunningError, SettingsError
from millstream.core.topology.topology import Topology
from millstream.drivers.kafka import election
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.cli.commands import app as command_line
from millstream.testing.crash import Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram
from proofs.sizes import sized

from .helpers import Apps, committed_records, eventually, lag, values_by_key
from .topologies import counts_in_kafka

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(400)]


def topology_of(topics: Topics) -> Topology:
    return counts_in_kafka(topics.input, topics.output)


def start_driver(apps: Apps, home: Path, source: str, sink: str) -> CrashedProgram:
    """Start a driver as if on its own host: in a program with its own state directory."""
    home.mkdir()
    settings = {
        "bootstrap_servers": apps.kafka.bootstrap_servers,
        "master": "local[2]",
        "state_dir": str(home / "state"),
        "processing_guarantee": "at_least_once",
        "statestore_cache_max_bytes": 0,
        "spark": {"spark.ui.enabled": "false"},
    }
    started = CrashedProgram(
        home, Job(apps.id, topology_of, Topics(source, sink, "ask", "contents"), settings)
    )
    started.start()
    return started


def test_a_second_driver_is_refused_while_the_first_one_runs(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    topology = counts_in_kafka(source, sink)
    running = apps.start(topology)
    apps.kafka.produce(source, [(None, "a b")] * 20)
    second = apps.application(topology, state_dir=tmp_path / "other-host")
    with pytest.raises(
        ApplicationRunningError, match=rf"{apps.id}' is already running: process \d+ .*standby=True"
    ):
        second.start()
    eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the first to go on as if nothing had been")
    running.stop()
    apps.kafka.produce(source, [(None, "a b")] * 20)
    with second.start():  # the first has left the group
        expected = list(range(1, 41))
        eventually(
            lambda: values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)["a"] == expected,
            "the second to continue",
        )


@pytest.mark.parametrize("same_machine", sized([True], [True, False]))
def test_a_new_driver_replaces_one_that_was_killed(
    apps: Apps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_machine: bool
) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    first = start_driver(apps, tmp_path / "first", source, sink)
    try:
        apps.kafka.produce(source, [(None, "a b")] * 20)
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the first to process all", within_s=120)
    finally:
        first.kill()
    if not same_machine:
        monkeypatch.setattr(election, "may_live", lambda _: True)
    begin = time.monotonic()
    apps.start(counts_in_kafka(source, sink)).stop()
    waited_s = time.monotonic() - begin
    assert same_machine or waited_s >= 1, "the session of the first had not ended"
    assert set(values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)["a"]) == set(range(1, 21))


@pytest.mark.soak
def test_only_one_of_two_drivers_that_start_together_continues(
    apps_without_spark: Apps, tmp_path: Path
) -> None:
    apps = apps_without_spark
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    programs = [start_driver(apps, tmp_path / name, source, sink) for name in ("first", "second")]
    try:
        eventually(
            lambda: any(each.exit_code() is not None for each in programs), "one of them to end", within_s=120
        )
        ended, other = sorted(programs, key=lambda each: each.exit_code() is None)
        assert "has another driver" in ended.last_words() or "is already running" in ended.last_words()
        apps.kafka.produce(source, [(None, "a b")] * 20)
        eventually(
            lambda: (
                set(values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64).get("a", ()))
                >= set(range(1, 21))
            ),
            "the other to go on",
            within_s=120,
        )
        assert other.exit_code() is None
    finally:
        for each in programs:
            each.kill()


def test_a_user_who_may_not_join_the_group_is_warned(
    apps: Apps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Clients) -> None:
        raise SettingsError("Kafka refuses access to group 'x-driver'")

    monkeypatch.setattr(Clients, "election", refuse)
    apps.start(counts_in_kafka(apps.topic("in", 1), apps.topic("out", 1))).stop()
    assert "cannot be seen: Kafka refuses access" in caplog.text


def test_a_reset_is_refused_while_a_driver_runs_on_another_host(apps: Apps, tmp_path: Path) -> None:
    source = apps.topic("in", 1)
    running = apps.start(counts_in_kafka(source, apps.topic("out", 1)))
    arguments = ["reset", apps.id, "--yes", "--state-dir", str(tmp_path / "other-host")]
    arguments += ["--bootstrap-servers", apps.kafka.bootstrap_servers, "--input-topic", source]
    refused = CliRunner().invoke(command_line, arguments)
    assert refused.exit_code != 0
    assert "is its driver. Nothing was changed" in refused.output
    running.stop()
    assert CliRunner().invoke(command_line, arguments).exit_code == 0
