"""Pause, resume and throttle on a real broker and Spark, from the application object and from the command line.

All tests share one application: two sub-topologies, which each copy a topic to another one and punctuate by the wall clock.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner, Result

import millstream as ms
from millstream.edge.cli.commands import app as command_line

from .helpers import Apps, eventually, values_by_key
from .topologies import ticking_copies

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.alone,
]  # one test measures a rate, and the tests depend on each other


@dataclass
class SharedApplication:
    """The application, and its topics."""

    apps: Apps
    topology: ms.Topology
    running: ms.RunningApplication
    first: str
    second: str

    def send(self, topic: str, *values: str) -> None:
        self.apps.kafka.produce(topic, [("k", value) for value in values])

    def copied(self, topic: str) -> list[str]:
        return self._out(topic).get("k", [])

    def ticks(self, topic: str) -> int:
        return sum(len(values) for key, values in self._out(topic).items() if key != "k")

    def _out(self, topic: str) -> dict[str | None, list[str]]:
        return values_by_key(self.apps.kafka.consume(f"{topic}-out"))

    def await_copies(self, topic: str, *values: str) -> None:
        """Wait until the copy of a topic ends with these values."""
        eventually(
            lambda: self.copied(topic)[-len(values) :] == [*values], f"{values} to be copied from {topic}"
        )

    def command(self, name: str, *arguments: str) -> Result:
        where = ["--state-dir", str(self.apps.home)]
        return CliRunner().invoke(command_line, [name, self.apps.id, *arguments, *where])


@pytest.fixture(scope="module")
def steered(module_apps: Apps) -> SharedApplication:
    first, second = (module_apps.topic(name, 1) for name in ("one", "two"))
    for topic in (first, second):
        module_apps.kafka.create_topic(f"{topic}-out", 1)
    topology = ticking_copies(300, {first: f"{first}-out", second: f"{second}-out"})
    return SharedApplication(module_apps, topology, module_apps.start(topology), first, second)


def test_a_paused_topic_is_not_read_while_others_are(steered: SharedApplication) -> None:
    steered.running.pause([steered.first])
    steered.send(steered.first, "paused")
    steered.send(steered.second, "read")
    steered.await_copies(steered.second, "read")
    eventually(
        lambda: steered.running.status().lag == {steered.first: 1, steered.second: 0},
        "the lag of the paused topic",
    )
    assert steered.running.status().paused == [steered.first]
    assert steered.copied(steered.first) == []
    steered.running.resume([steered.first])
    steered.await_copies(steered.first, "paused")
    assert steered.running.status().paused == []


def test_only_the_wall_clock_punctuation_of_a_paused_sub_topology_stops(steered: SharedApplication) -> None:
    eventually(lambda: steered.ticks(steered.first) and steered.ticks(steered.second), "both clocks to tick")
    steered.running.pause(subtopologies=[0])
    seen = steered.running.status().batch
    eventually(lambda: steered.running.status().batch > seen, "the micro-batch at work to end")
    ticks_of_paused, ticks_of_active = steered.ticks(steered.first), steered.ticks(steered.second)
    eventually(lambda: steered.ticks(steered.second) >= ticks_of_active + 4, "the clock that goes on")
    assert steered.ticks(steered.first) == ticks_of_paused
    steered.running.resume(subtopologies=[0])
    eventually(lambda: steered.ticks(steered.first) > ticks_of_paused, "the clock that goes on again")


def test_a_throttled_topic_is_read_at_its_rate_without_delaying_others(steered: SharedApplication) -> None:
    steered.running.throttle(steered.first, 20)
    throttled = steered.running.metrics()["throttled_ms"]
    began = time.monotonic()
    steered.send(steered.first, *map(str, range(80)))
    steered.send(steered.second, "quick")
    steered.await_copies(steered.second, "quick")
    assert steered.copied(steered.first)[-1] != "79"
    steered.await_copies(
        steered.first, *map(str, range(80))
    )  # a burst of one second, then three seconds at the limited rate
    assert 2.9 < time.monotonic() - began < 15
    assert 1_000 < steered.running.metrics()["throttled_ms"] - throttled < 15_000
    steered.running.throttle(steered.first, None)
    assert steered.running.status().throttled == {}


def test_the_command_line_can_pause_resume_and_throttle(steered: SharedApplication) -> None:
    control_file = steered.apps.home / steered.apps.id / "control.json"
    assert stat.S_IMODE(control_file.stat().st_mode) == 0o600
    paused = steered.command("pause", "--topic", steered.first)
    assert (paused.exit_code, paused.stdout) == (0, f"paused: {steered.first}\nthrottled: nothing\n")
    steered.command("throttle", steered.second, "1000")
    status = steered.running.status()
    assert (status.paused, status.throttled) == ([steered.first], {steered.second: 1_000})
    resumed = steered.command("resume")
    assert resumed.stdout == f"paused: nothing\nthrottled: {steered.second} to 1,000/s\n"
    steered.command("throttle", steered.second, "off")
    refused = steered.command("pause", "--topic", "misspelt")
    assert refused.exit_code == 1
    assert (
        f"does not read 'misspelt' from the broker; it reads '{steered.first}', '{steered.second}'"
        in refused.stderr
    )


def test_another_process_can_read_the_status(steered: SharedApplication) -> None:
    command = [sys.executable, "-m", "millstream", "status", steered.apps.id, "--json"]
    printed = subprocess.run(
        [*command, "--state-dir", str(steered.apps.home)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    status = json.loads(printed)
    assert (status["state"], status["tasks"], status["error"]) == ("running", 2, None)
    assert list(status) == list(ms.RunningApplication.status(steered.running).__dataclass_fields__)


def test_a_kept_pause_outlasts_a_restart_and_a_run_to_the_end_waits_for_the_topic(
    steered: SharedApplication,
) -> None:
    assert steered.command("pause", "--topic", steered.first, "--keep").exit_code == 0
    steered.running.pause([steered.second])
    steered.running.stop()
    refused = steered.command("status")
    assert (refused.exit_code, "is not running with this state directory" in refused.stderr) == (1, True)
    steered.send(steered.first, "kept back")
    steered.send(steered.second, "read again")
    restarted = steered.apps.application(steered.topology, max_records_per_second={steered.second: 500})
    with restarted.start(until="end") as running:
        steered.await_copies(steered.second, "read again")
        assert not running.await_termination(1)
        status = running.status()
        assert (status.paused, status.throttled) == ([steered.first], {steered.second: 500})
        assert status.lag[steered.first] == 1
        assert steered.command("resume").exit_code == 0
        assert running.await_termination(60)
        assert steered.copied(steered.first)[-1] == "kept back"
    assert not (steered.apps.home / steered.apps.id / "paused.json").exists()


def test_every_record_was_copied_exactly_once(steered: SharedApplication) -> None:
    assert steered.copied(steered.first) == ["paused", *map(str, range(80)), "kept back"]
    assert steered.copied(steered.second) == ["read", "quick", "read again"]
