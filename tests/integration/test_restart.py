"""Stopped, killed and started again, with its local state or without it: the counts are those of a plain count.

The application runs as a process of its own, in a session of its own, so that a signal to its process group takes the Spark
JVM and the Python workers with it. A producer goes on writing while it is down. What is compared is the last value of every
word in the output topic: records may be there twice, but no count may be wrong.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from penstock.testing import EmbeddedKafka

from .apps.wordcount import topology
from .helpers import Apps

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(280)]

PROGRAM = Path(__file__).parent / "apps" / "wordcount.py"
WORDS = [
    "to",
    "be",
    "or",
    "not",
    "to",
    "be",
    "that",
    "is",
    "the",
    "question",
    "whether",
    "tis",
    "nobler",
    "in",
    "the",
    "mind",
    "to",
    "suffer",
]


@dataclass
class WordCount:
    """The application's process, the words it has been given, and what it has written."""

    apps: Apps
    lines: str
    counts: str
    log: Path
    expected: Counter[str] = field(default_factory=Counter)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        servers = self.apps.kafka.bootstrap_servers
        command = [
            sys.executable,
            str(PROGRAM),
            self.apps.id,
            servers,
            self.lines,
            self.counts,
            str(self.apps.home),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def produce(self, count: int) -> None:
        first = sum(self.expected.values())
        lines = [
            " ".join(WORDS[(first + i + j) % len(WORDS)] for j in range(1 + i % 5)) for i in range(count)
        ]
        for line in lines:
            self.expected.update(line.split())
        self.apps.kafka.produce(self.lines, [(None, line) for line in lines])

    def kill(self) -> None:
        """Kill the program, its JVM and all Python workers at once."""
        assert self.process is not None
        family = [
            self.process.pid,
            *(p.pid for p in psutil.Process(self.process.pid).children(recursive=True)),
        ]
        for pid in family:
            with_pid(pid, signal.SIGKILL)
        self.process.wait()
        await_that(
            lambda: not any(psutil.pid_exists(pid) and alive(pid) for pid in family), "everything is dead"
        )

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def written(self) -> int:
        return sum(self.apps.kafka.end_offsets(self.counts).values())

    def await_progress(self, more: int) -> None:
        """Wait until so many more results are there; fail at once if the program ends."""
        wanted = self.written() + more
        await_that(lambda: self.written() >= wanted, f"{more} more results", self)

    def await_drained(self) -> None:
        """Wait until the group's offsets are at the end of the topic."""
        kafka = self.apps.kafka

        def drained() -> bool:
            ends = {p: end for p, end in kafka.end_offsets(self.lines).items() if end}
            return ends == {p: at for p, at in kafka.committed(self.apps.id, self.lines).items() if at}

        await_that(drained, "lag 0", self)

    def results(self) -> dict[str, int]:
        records = self.apps.kafka.consume(self.counts)
        return {str(r.key, "utf-8"): int.from_bytes(r.value, "big") for r in records if r.key and r.value}


def with_pid(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_that(
    condition: Callable[[], bool], what: str, of: WordCount | None = None, seconds: float = 150
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if of is not None and of.process is not None and of.process.poll() is not None:
            pytest.fail(f"the program ended while waiting for {what}: {of.log.read_text()[-2000:]}")
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s for {what}" + (f": {of.log.read_text()[-2000:]}" if of else ""))
        time.sleep(0.1)


@pytest.fixture
def word_count(apps: Apps, tmp_path: Path) -> Iterator[WordCount]:
    made = WordCount(apps, apps.topic("lines"), apps.topic("counts"), tmp_path / "program.log")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def test_killed_in_the_middle_of_a_stream_and_without_its_local_state(word_count: WordCount) -> None:
    word_count.produce(4000)
    word_count.start()
    word_count.await_progress(1500)
    word_count.kill()
    word_count.produce(1000)
    word_count.start()
    word_count.await_progress(1500)
    word_count.kill()
    assert word_count.apps.local_state.is_dir()
    shutil.rmtree(word_count.apps.local_state)
    word_count.produce(500)
    restored = word_count.apps.run(topology(word_count.lines, word_count.counts)).metrics()[
        "restored_changes"
    ]
    assert restored >= len(set(WORDS))
    assert word_count.results() == dict(word_count.expected)


def test_stopped_by_sigterm_goes_on_where_it_was(word_count: WordCount) -> None:
    word_count.produce(3000)
    word_count.start()
    word_count.await_progress(1000)
    assert word_count.terminate() == 0
    before = word_count.written()
    word_count.produce(300)
    word_count.start()
    word_count.await_drained()
    assert word_count.terminate() == 0
    assert word_count.results() == dict(word_count.expected)
    assert word_count.written() == sum(
        word_count.expected.values()
    )  # nothing twice: it stopped between batches
    assert before < word_count.written()


def test_a_killed_python_worker_ends_the_application_and_loses_nothing(word_count: WordCount) -> None:
    word_count.produce(3000)
    word_count.start()
    word_count.await_progress(1000)
    assert word_count.process is not None
    workers = [
        p
        for p in psutil.Process(word_count.process.pid).children(recursive=True)
        if "penstock.edge.daemon" in " ".join(p.cmdline())
    ]
    assert workers
    for worker in workers:
        with_pid(worker.pid, signal.SIGKILL)
    word_count.produce(200)
    await_that(lambda: word_count.process.poll() is not None or drained(word_count), "an end or a recovery")
    if word_count.process.poll() is None:
        word_count.kill()
    word_count.apps.run(topology(word_count.lines, word_count.counts))
    assert word_count.results() == dict(word_count.expected)


def drained(word_count: WordCount) -> bool:
    kafka: EmbeddedKafka = word_count.apps.kafka
    return sum(kafka.committed(word_count.apps.id, word_count.lines).values()) == sum(
        kafka.end_offsets(word_count.lines).values()
    )
