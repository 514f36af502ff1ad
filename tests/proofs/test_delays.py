"""Proof 8: delayed records fire once each when they are due, and never early, although all processes are killed in between."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import millstream as ms
from integration.helpers import eventually, lag, written
from millstream.testing import EmbeddedKafka
from millstream.testing.crash.app import Job, Topics
from millstream.testing.crash.broker_topics import commits_of
from millstream.testing.crash.processes import CrashedProgram

from .journal import BEGIN, END, FAILED, Journal, counts, lines_of, read
from .results import write_result
from .runs import now_ms, times_ms
from .sizes import sized
from .spark_batches import committed_batches

pytestmark = [
    pytest.mark.alone,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(sized(600, 1_200)),
]

RECORDS = sized(2_000, 100_000)
OVER_MS = sized(20_000, 300_000)
"""The period in which the records become due, one after the other."""
AHEAD_MS = sized(6_000, 90_000)
"""How long after the records are written the first one is due; by then, all have been called once."""
KILLED_AFTER = RECORDS // sized(6, 3)
"""How many records have fired when all processes are killed."""


@dataclass(frozen=True)
class Delayed:
    """Delays each record until it is due: its value is its number and its due time."""

    journal: Journal

    async def call(self, value: str) -> object:
        number, due = map(int, value.split())
        self.journal.begin(number)
        if now_ms() < due:
            self.journal.failed(number)
            return ms.delay(until=due)
        self.journal.end(number)
        return value

    def topology(self, topics: Topics) -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.stream(topics.input).map_values_async(self.call).to(topics.output)
        return builder.build()


def committed_with_their_batches(kafka: EmbeddedKafka, name: str, topic: str, checkpoint: Path) -> int:
    """Return the offset that was committed with the last micro-batch that Spark has also committed."""
    last = committed_batches(checkpoint)[-1]
    return max(commit.offset for commit in commits_of(kafka, name, topic) if commit.at_us <= last)


@contextmanager
def program_of(
    kafka: EmbeddedKafka, name: str, topics: Topics, delayed: Delayed, home: Path
) -> Iterator[CrashedProgram]:
    """Create a separate program, which can be killed with all its child processes."""
    for topic in (topics.input, topics.output):
        kafka.create_topic(topic, 1)
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "state_dir": str(home),
        "master": "local[2]",
        "spark": {"spark.ui.enabled": "false"},
    }
    program = CrashedProgram(home, Job(name, delayed.topology, topics, settings))
    try:
        yield program
    finally:
        program.kill()


def test_delayed_records_survive_a_kill_and_never_fire_early(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    name = f"delays-{secrets.token_hex(3)}"
    topics = Topics(*(f"{name}-{part}" for part in ("in", "out", "ask", "contents")))
    path = tmp_path / "journal"
    with program_of(kafka, name, topics, Delayed(Journal(path)), tmp_path) as program:
        program.start()
        kafka.produce(topics.input, [("warm", f"{RECORDS} 0")])
        eventually(lambda: written(kafka, topics.output) == 1, "the first result", within_s=150)
        first = now_ms() + AHEAD_MS
        due = np.array([round(first + number * OVER_MS / RECORDS) for number in range(RECORDS)])
        kafka.produce(
            topics.input, [(f"k{number}", f"{number} {due_ms}") for number, due_ms in enumerate(due)]
        )
        fired = partial(lambda: len(lines_of(read(path), END)))
        eventually(lambda: fired() >= KILLED_AFTER, "the first to fire", within_s=(AHEAD_MS + OVER_MS) / 1000)
        program.kill()
        committed = committed_with_their_batches(kafka, name, topics.input, tmp_path / name / "checkpoint")
        before = len(read(path))
        program.start()
        eventually(lambda: lag(kafka, name, topics.input) == 0, "all", within_s=150 + OVER_MS / 1000)
    lines = read(path)
    lines = lines[lines["number"] < RECORDS]
    before -= 2  # lines of the first record, which showed that the program works
    ended, begins_after_restart = lines_of(lines, END), lines_of(lines[before:], BEGIN)
    late = times_ms(ended) - due[ended["number"]]
    restarted_ms = times_ms(begins_after_restart).min()
    on_time = due[ended["number"]] > restarted_ms + 3_000
    run_again = set(lines_of(lines[:before], END)["number"].tolist()) & set(
        begins_after_restart["number"].tolist()
    )
    fired_when_killed = len(lines_of(lines[:before], END))
    write_result(
        "8-delays",
        records=RECORDS,
        over_s=OVER_MS // 1000,
        fired_when_killed=fired_when_killed,
        of_those_committed=committed - 1,
        early=int((late < 0).sum()),
        lost=int((counts(lines, END, RECORDS) == 0).sum()),
        committed_and_run_again=sum(number + 1 < committed for number in run_again),
        run_again=len(run_again),
        asked_again_before_they_were_due=int((lines[before:]["kind"] == FAILED).sum()),
        due_while_it_ran=int(on_time.sum()),
        late_ms=[round(value) for value in np.percentile(late[on_time], (50, 99, 100))]
        if on_time.any()
        else [],
    )
    assert late.min() >= 0
    assert counts(lines, END, RECORDS).min() == 1
    assert all(number + 1 >= committed for number in run_again)
    assert counts(lines, END, RECORDS).sum() == RECORDS + len(run_again)
    # Each record was called once before it was due and not again until then, so its delay survived the kill.
    assert (counts(lines[:before], FAILED, RECORDS) == 1).all()
    assert (lines[before:]["kind"] != FAILED).all()
    results = [int((each.value or b"").split()[0]) for each in kafka.consume(topics.output)]
    assert set(results) == set(range(RECORDS + 1))
