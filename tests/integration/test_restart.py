"""An application that is stopped or suspended continues where it was, without sending anything twice.

Kills are tested in test_crashes.py.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Literal

import psutil
import pytest

from millstream.testing import EmbeddedKafka
from millstream.testing.crash import APPS, Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.journal import check_journals, journals_of
from millstream.testing.crash.processes import CrashedProgram, signalled

from .helpers import Apps, eventually, written
from .topologies import ticking_copies

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(280)]

WORD_COUNT = APPS["word-count"]


IMPATIENT_SPARK = {
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "200ms",
    "spark.executor.heartbeat.maxFailures": "3",
}


def program_of(apps: Apps, home: Path, **spark: str) -> tuple[CrashedProgram, Topics]:
    topics = Topics(*(apps.topic(name) for name in ("input", "output", "ask", "contents")))
    settings = {
        "bootstrap_servers": apps.kafka.bootstrap_servers,
        "state_dir": str(apps.home),
        "master": "local[2]",
        "max_batch_records": 400,
        "statestore_cache_max_bytes": 0,  # the oracle has every update
        "spark": {"spark.ui.enabled": "false", **spark},
    }
    return CrashedProgram(home, Job(apps.id, WORD_COUNT.topology, topics, settings)), topics


def test_an_application_stopped_by_sigterm_continues_where_it_was(apps: Apps, tmp_path: Path) -> None:
    kafka: EmbeddedKafka = apps.kafka
    program, topics = program_of(apps, tmp_path)
    first, second = WORD_COUNT.workload(3_000, 1), WORD_COUNT.workload(300, 2)
    try:
        kafka.produce(topics.input, first)
        program.start()
        eventually(lambda: written(kafka, topics.output) > 1_000, "results", within_s=120)
        assert program.stop(grace_s=120) == 0, program.last_words()
        before = written(kafka, topics.output)
    finally:
        program.kill()
    kafka.produce(topics.input, second)
    apps.run(WORD_COUNT.topology(topics), max_batch_records=400)
    expected = WORD_COUNT.oracle(kafka.consume(topics.input))
    assert before < written(kafka, topics.output)
    seen = journals_of(kafka.consume(topics.output), WORD_COUNT.key, WORD_COUNT.value)
    assert not check_journals(expected.journals, seen).breaks(
        "exactly_once"
    )  # it stopped between micro-batches


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_application_continues_after_a_suspension_longer_than_sparks_heartbeat_timeout(
    apps: Apps, tmp_path: Path
) -> None:
    program, topics = program_of(apps, tmp_path, **IMPATIENT_SPARK)
    try:
        apps.kafka.produce(topics.input, WORD_COUNT.workload(1_000, 1))
        program.start()
        await_all_results(apps.kafka, topics)
        suspend(program, 12.0)
        apps.kafka.produce(topics.input, WORD_COUNT.workload(1_000, 2))
        await_all_results(apps.kafka, topics)
        assert program.exit_code() is None, program.last_words()
    finally:
        program.kill()


def await_all_results(kafka: EmbeddedKafka, topics: Topics) -> None:
    expected = WORD_COUNT.oracle(kafka.consume(topics.input)).journals
    results = sum(map(len, expected.values()))
    eventually(lambda: written(kafka, topics.output) >= results, "all results", within_s=240)


def suspend(program: CrashedProgram, seconds: float) -> None:
    """Suspend all processes of a program for some seconds."""
    processes = program.family()
    signalled(processes, signal.SIGSTOP)
    time.sleep(seconds)  # Spark's timeout is in real time, and suspended processes have no events
    signalled(processes, signal.SIGCONT)


def test_a_stopped_application_leaves_no_connection_to_the_broker(apps: Apps) -> None:
    topology = ticking_copies(1_000, {apps.topic("in"): apps.topic("out")})
    before = connections(apps.kafka)
    with apps.start(topology):
        assert connections(apps.kafka) > before
    eventually(lambda: connections(apps.kafka) <= before, "the connections to be closed")


def connections(kafka: EmbeddedKafka) -> int:
    """Count the connections that this process has to a broker."""
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    open_connections = psutil.Process().net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == port for each in open_connections)


@pytest.mark.parametrize("begun", ["driver", "worker"])
def test_the_error_names_the_jvm_if_it_is_killed_during_the_start(
    apps: Apps, tmp_path: Path, begun: Literal["driver", "worker"]
) -> None:
    program, _ = program_of(apps, tmp_path)
    try:
        program.start()
        eventually(lambda: "Spark 4" in program.last_words(), "Spark in the log", within_s=120)
        eventually(lambda: program.victims(begun), f"a {begun}", within_s=120)
        for driver in program.victims("driver"):
            driver.kill()
        eventually(lambda: program.exit_code() is not None, "the end", within_s=120)
        assert "Spark has ended: its JVM does not answer" in program.last_error()
    finally:
        program.kill()
