"""The processes of an application are found by their mark and ended. The program of these tests starts a sleeping process and waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

import millstream as ms
from millstream.testing.crash import Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram, kill_one, works_as

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
TOPICS = Topics("input", "output", "ask", "contents")


def sleeping(topics: Topics) -> ms.Topology:
    """Start a process in a separate session, like a daemon, and wait for it."""
    subprocess.run(["sleep", "60"], start_new_session=True, check=False)
    raise AssertionError("unreachable")


def failing(topics: Topics) -> ms.Topology:
    raise ms.MillstreamError(f"cannot read {topics.input}")


def await_condition(holds: Callable[[], object], description: str, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {within_s} s for {description}"
        time.sleep(0.02)


def program_of(home: Path, topology: Callable[[Topics], ms.Topology]) -> CrashedProgram:
    return CrashedProgram(home, Job("sleeper", topology, TOPICS, {"bootstrap_servers": "localhost:1"}))


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def sleepers(program: CrashedProgram) -> list[psutil.Process]:
    return [process for process in program.family() if process.name() == "sleep"]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[CrashedProgram]:
    program = program_of(tmp_path, sleeping)
    program.start()
    await_condition(lambda: sleepers(program), "the sleeper")
    yield program
    program.kill()


def test_a_kill_ends_the_program_and_the_processes_that_it_started(sleeper: CrashedProgram) -> None:
    assert len(sleeper.family()) == 2
    sleeper.kill()
    assert sleeper.family() == []
    assert sleeper.exit_code() == -signal.SIGKILL


def test_orphans_of_a_dead_program_are_found_and_ended(sleeper: CrashedProgram) -> None:
    (orphan,) = sleepers(sleeper)
    parent = orphan.parent()
    assert parent is not None
    os.kill(parent.pid, signal.SIGKILL)
    await_condition(lambda: sleeper.exit_code() is not None, "the end of the program")
    assert sleeper.family() == [orphan]
    sleeper.kill()
    assert not is_alive(orphan)


def test_processes_of_other_programs_are_not_killed(sleeper: CrashedProgram, tmp_path: Path) -> None:
    stranger = program_of(tmp_path, sleeping)
    assert stranger.family() == []
    stranger.kill()
    assert sleeper.exit_code() is None


def test_one_process_can_be_killed_alone(sleeper: CrashedProgram) -> None:
    (victim,) = sleepers(sleeper)
    assert kill_one(victim).endswith("sleep 60")
    assert not is_alive(victim)
    await_condition(lambda: sleeper.exit_code() is not None, "the end of the program")
    assert sleeper.exit_code() == 1


def test_a_program_without_spark_has_no_spark_processes_as_victims(sleeper: CrashedProgram) -> None:
    assert [sleeper.victims(target) for target in ("driver", "executor", "worker", "async-worker")] == [
        []
    ] * 4  # type: ignore[arg-type]


def test_the_last_words_of_a_program_say_why_it_ended(tmp_path: Path) -> None:
    program = program_of(tmp_path, failing)
    program.start()
    await_condition(lambda: program.exit_code() is not None, "the end of the program")
    assert program.exit_code() == 1
    assert "cannot read input" in program.last_words()
    assert program.last_error() == "millstream.core.model.errors.MillstreamError: cannot read input"


def test_a_killed_program_can_be_started_again(sleeper: CrashedProgram) -> None:
    sleeper.kill()
    sleeper.start()
    await_condition(lambda: sleepers(sleeper), "the sleeper")
    assert sleeper.exit_code() is None


@pytest.mark.parametrize("waits_for_a_fork", [False, True])
def test_a_client_that_waits_for_a_fork_is_not_a_worker(waits_for_a_fork: bool) -> None:
    client = find_spec("millstream.edge.forks.fork_client")
    assert client is not None
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    command += [str(client.origin), "fork.sock", sys.executable] if waits_for_a_fork else []
    with subprocess.Popen([*command, "-m", PLANNER]) as started:
        process = psutil.Process(started.pid)
        try:
            await_condition(process.cmdline, "its command line")
            assert works_as(process, PLANNER) is not waits_for_a_fork
        finally:
            started.kill()
