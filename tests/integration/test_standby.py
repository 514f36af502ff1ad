"""Several drivers of one application: one runs it, and another one takes over when the first is killed or suspended."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.core.topology.topology import Topology
from millstream.testing.crash import Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram

from .helpers import Apps, committed_records, eventually
from .topologies import counts_in_kafka

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(400)]


log = logging.getLogger(__name__)


def topology_of(topics: Topics) -> Topology:
    return counts_in_kafka(topics.input, topics.output)


def topology_with_state_in_checkpoint(topics: Topics) -> Topology:
    return counts_in_kafka(topics.input, topics.output, "spark")


class Drivers:
    """Drivers of one application, each in its own program, and the records that they count."""

    def __init__(
        self,
        apps: Apps,
        home: Path,
        settings: dict[str, Any],
        topology: Callable[[Topics], Topology] = topology_of,
    ) -> None:
        self.apps, self.home, self.topology = apps, home, topology
        self.source, self.sink = apps.topic("in", 1), apps.topic("out", 1)
        self.sent = 0
        self.settings = {
            "bootstrap_servers": apps.kafka.bootstrap_servers,
            "master": "local[2]",
            "state_dir": str(apps.home),
            "statestore_cache_max_bytes": 0,
            "spark": {"spark.ui.enabled": "false"},
            **settings,
        }

    def start(self, name: str, **settings: Any) -> CrashedProgram:
        (self.home / name).mkdir()
        topics = Topics(self.source, self.sink, "ask", "contents")
        job = Job(self.apps.id, self.topology, topics, {**self.settings, **settings}, standby=True)
        program = CrashedProgram(self.home / name, job)
        program.start()
        return program

    def send(self) -> None:
        self.apps.kafka.produce(self.source, [(None, "word")])
        self.sent += 1

    def counts(self) -> list[int]:
        records = committed_records(self.apps.kafka, self.sink)
        return [int.from_bytes(record.value or b"", "big") for record in records]

    def await_counts(self, description: str) -> None:
        eventually(lambda: self.sent in self.counts(), description, within_s=120)


@contextmanager
def active_and_standby(drivers: Drivers, **second: Any) -> Iterator[tuple[CrashedProgram, CrashedProgram]]:
    """Start a driver that runs and one that stands by.

    Args:
        drivers: Starts the drivers.
        **second: Other settings of the second driver.
    """
    programs = [drivers.start("first")]
    try:
        drivers.send()
        drivers.await_counts("the first driver")
        programs.append(drivers.start("second", **second))
        eventually(lambda: "standing by" in programs[1].log.read_text(), "the second to stand by")
        yield programs[0], programs[1]
    finally:
        for program in programs:
            program.kill()


@pytest.mark.alone  # it measures how long the election takes
def test_the_standby_takes_over_from_a_driver_that_is_killed(
    apps_without_spark: Apps, tmp_path: Path
) -> None:
    drivers = Drivers(apps_without_spark, tmp_path, {"processing_guarantee": "at_least_once"})
    with active_and_standby(drivers) as (first, second):
        eventually(lambda: "ready to take over" in second.log.read_text(), "the warm-ups", within_s=180)
        begin = time.monotonic()
        first.kill()
        drivers.send()
        eventually(lambda: "is elected" in second.log.read_text(), "the election")
        elected_s = time.monotonic() - begin
        drivers.await_counts("the second driver")
        log.info("elected after %.1f s, a result after %.1f s", elected_s, time.monotonic() - begin)
        assert sorted(set(drivers.counts())) == [1, 2]
        assert elected_s < 10
        assert second.stop(grace_s=60) == 0, second.last_words()


def test_the_standby_takes_over_from_a_suspended_driver_which_then_ends(
    apps_without_spark: Apps, tmp_path: Path
) -> None:
    exactly_once = {
        "processing_guarantee": "exactly_once",
        "checkpoint_location": str(tmp_path / "checkpoint"),
    }
    drivers = Drivers(apps_without_spark, tmp_path, exactly_once)
    with active_and_standby(drivers, state_dir=str(tmp_path / "another-host")) as (first, second):
        family = first.victims("main")
        for process in family:
            process.send_signal(signal.SIGSTOP)
        eventually(lambda: "is elected" in second.log.read_text(), "the second to be elected")
        for process in family:
            process.send_signal(signal.SIGCONT)
        eventually(lambda: first.exit_code() is not None, "the first to end", within_s=60)
        assert "another driver of application" in first.last_words()
        drivers.send()
        drivers.await_counts("the second driver")
        assert sorted(drivers.counts()) == [1, 2]


@pytest.mark.soak
def test_a_standby_with_its_own_checkpoint_does_not_take_over(
    apps_without_spark: Apps, tmp_path: Path
) -> None:
    drivers = Drivers(apps_without_spark, tmp_path, {}, topology_with_state_in_checkpoint)
    with active_and_standby(drivers, state_dir=str(tmp_path / "another-host")) as (first, second):
        first.kill()
        drivers.send()
        eventually(lambda: second.exit_code() is not None, "the second to end", within_s=120)
        assert "do not share a checkpoint" in second.last_words()
        assert drivers.counts() == [1]
