"""Workers that are suspended for longer than the transaction timeout: the application continues, exactly once."""

from __future__ import annotations

import re
import signal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.testing import EmbeddedKafka
from millstream.testing.crash import APPS, Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.journal import check_journals, journals_of
from millstream.testing.crash.processes import CrashedProgram
from millstream.testing.crash.stream import transaction_is_open

from .helpers import Apps, committed_records, eventually, lag

if TYPE_CHECKING:
    import psutil

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(800)]

APP = APPS["word-count"]
TIMEOUT_MS = 2_000
"""Brokers abort older transactions; they check every ten seconds."""


def suspend_until_abort(program: CrashedProgram, kafka: EmbeddedKafka, topic: str) -> list[psutil.Process]:
    """Suspend the workers; return them if one of them had an open transaction and had not yet requested its commit.

    They are suspended before the broker is asked, because the transaction of a small micro-batch may end before the answer.
    """
    workers = program.victims("worker")
    send(workers, signal.SIGSTOP)
    if transaction_is_open(kafka, topic):
        eventually(
            lambda: not transaction_is_open(kafka, topic), "the broker to end the transaction", within_s=60
        )
        if len(kafka.consume(topic, isolation="read_committed")) < len(kafka.consume(topic)):
            return workers
    send(workers, signal.SIGCONT)
    return []


def warnings(log: str) -> str:
    """Return the lines of a log that are not at level INFO, for an assertion message."""
    return "\n".join(line for line in log.splitlines() if " INFO " not in line)


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


@pytest.mark.soak
def test_workers_suspended_in_a_transaction_send_its_records_again(apps: Apps, tmp_path: Path) -> None:
    kafka = apps.kafka
    topics = Topics(*(apps.topic(name, 2) for name in ("input", "output", "ask", "contents")))
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "state_dir": str(apps.home),
        "master": "local[2]",  # as the default, a task has one attempt
        "max_batch_records": 5_000,  # enough for transactions that take some time
        "statestore_cache_max_bytes": 0,  # the oracle has every update
        "processing_guarantee": "exactly_once",
        "transaction_timeout_ms": TIMEOUT_MS,
        "spark": {"spark.ui.enabled": "false"},
    }
    program = CrashedProgram(tmp_path, Job(apps.id, APP.topology, topics, settings))
    seeds = count(1)

    def stopped() -> list[psutil.Process]:
        if lag(kafka, apps.id, topics.input) == 0:  # all were committed before the workers could be suspended
            kafka.produce(topics.input, APP.workload(20_000, next(seeds)))
        assert program.exit_code() is None, program.last_words()
        return suspend_until_abort(program, kafka, topics.output)

    program.start()
    try:
        workers = eventually(stopped, "an aborted transaction", within_s=400)
        send(workers, signal.SIGCONT)
        expected = APP.oracle(kafka.consume(topics.input))
        results = sum(map(len, expected.journals.values()))
        # not the lag of the input, because its words may still be in the repartition topic
        eventually(
            lambda: len(committed_records(kafka, topics.output)) >= results, "all results", within_s=240
        )
        assert program.stop(grace_s=60) == 0, program.last_words()
    finally:
        program.kill()
    log = (apps.home / apps.id / "millstream.log").read_text()
    # The reason for the abort varies: records may time out, or be refused, before the worker commits.
    assert re.search(r"retrying the send: the transaction of .* was aborted: ", log), warnings(log)
    assert "share one application id" not in log
    seen = journals_of(committed_records(kafka, topics.output), APP.key, APP.value)
    assert not check_journals(expected.journals, seen).breaks("exactly_once")
