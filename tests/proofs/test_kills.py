"""Proofs 3 and 10: despite repeated kills, no record is lost, and none is called again after its completion was committed.

The crash harness runs its application of calls, whose function also writes a journal. The broker shows what was committed, and when:
results carry the time at which it accepted them. With exactly once, a result that can be read has been committed, and its record must
not be called after that (proof 10 consists of the checks of the harness: results, state and offsets equal those of the oracle). With
at least once, a result is committed when Spark writes the commit of its micro-batch to a file of the checkpoint. The commits of the
group are compared with the journal as in proof 2, across all crashes.

Only calls whose results were not committed may be repeated; their number is part of the result. Results that a micro-batch sent
before a kill are not those that it commits: such a result counts as committed only if its record has no other one.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from millstream.testing import EmbeddedKafka
from millstream.testing.crash import App, Guarantee, Report, Target, run_with_crashes, unspoiled
from millstream.testing.crash.apps import called, calling
from millstream.testing.crash.broker_topics import Commit, commits_of
from millstream.testing.kafka import ConsumedRecord

from .checks import NEVER, Times, called_again, committed_since, finish_times, too_early, with_their_batches
from .journal import END, Journal, Lines, lines_of, overlaps, read
from .results import write_result
from .sizes import FULL, sized
from .spark_batches import committed_batches

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(sized(600, 3_600)),
]

MAIN: tuple[Target, ...] = ("program", "driver", "worker", "async-worker")
OTHERS: tuple[Target, ...] = ("host", "broker", "transaction")

Round = tuple[Guarantee, int, tuple[Target, ...]]

SHORT: list[Round] = [("exactly_once", 15, ("program", "worker", "async-worker"))]
LONG: list[Round] = [
    *(("at_least_once", 100 + number, MAIN * 2 + MAIN[:2]) for number in range(5)),
    *(("exactly_once", 200 + number, MAIN + OTHERS + MAIN[1:]) for number in range(5)),
]
RUNS = LONG if FULL else SHORT


def journaling(journal: Journal) -> App:
    """Return the application of calls, with a journal; Spark keeps all its micro-batches."""

    async def journaled(value: str) -> str:
        number = number_of(value.encode())
        journal.begin(number)
        try:
            answer = await called(value)
        except ConnectionError:
            journal.failed(number)
            raise
        journal.end(number)
        return answer

    settings = {"spark": {"spark.sql.streaming.minBatchesToRetain": "100000"}}
    # Results carry the time at which the broker accepted them, so that they can be compared with other events.
    output = {"message.timestamp.type": "LogAppendTime"}
    return dataclasses.replace(calling(journaled), settings=settings, output=output)


def number_of(value: bytes) -> int:
    """Return the number of a record of the workload, ``order-NUMBER``."""
    return int(value.partition(b"-")[2])


@dataclass(frozen=True)
class Evidence:
    """The evidence that a run leaves.

    Attributes:
        input_records: The records of the input topic.
        output: The results that can be read.
        commits: The commits of the group.
        batches: When Spark's micro-batches were committed.
        kills: When processes were killed.
        lines: The journal of the calls.
    """

    input_records: list[ConsumedRecord]
    output: list[ConsumedRecord]
    commits: list[Commit]
    batches: Times
    kills: Times
    lines: Lines


def run_with_kills(
    guarantee: Guarantee, seed: int, targets: tuple[Target, ...], home: Path
) -> tuple[Report, Evidence]:
    """Run the application of calls with some kills; repeat the run if the broker spoiled it."""
    directory = home

    def run(seed: int, attempt: int) -> Report:
        nonlocal directory
        directory = home / str(attempt)
        return run_with_crashes(
            journaling(Journal(home / f"journal-{attempt}")),
            guarantee=guarantee,
            kills=len(targets),
            seed=seed,
            targets=targets,
            records=sized(500, 1_500) * len(targets),
            keep_logs=directory,
            stops=(),
            twice=False,
        )

    report = unspoiled(run, seed, log_report=print)
    with EmbeddedKafka(directory=directory / "kafka") as kafka:
        return report, Evidence(
            kafka.consume("calls-input"),
            kafka.consume("calls-output", isolation="read_committed"),
            commits_of(kafka, "calls", "calls-input"),
            committed_batches(directory / "state" / "calls" / "checkpoint"),
            np.array([kill.at_ms * 1_000 for kill in report.kills], np.int64),
            read(home / f"journal-{directory.name}"),
        )


def check_commits(evidence: Evidence) -> None:
    """Check that no commit of any partition was beyond an unfinished record, and none went back."""
    for partition in {record.partition for record in evidence.input_records}:
        input_records = [record for record in evidence.input_records if record.partition == partition]
        commits = [commit for commit in evidence.commits if commit.partition == partition]
        offsets = np.array([record.offset for record in input_records])
        assert too_early(commits, offsets, finish_times(input_records, number_of, evidence.lines)) == []
        assert [commit.offset for commit in commits] == sorted(commit.offset for commit in commits)


def check_calls(evidence: Evidence, guarantee: Guarantee) -> None:
    """Check that no record was called after its completion was committed, and no two records of a key at once in an async worker."""
    answered = np.array(
        [number_of(json.loads(record.value or b"")[1].encode()) for record in evidence.output]
    )
    taken = np.array([record.timestamp * 1000 + 999 for record in evidence.output])
    if guarantee == "at_least_once":
        taken = with_their_batches(answered, taken, evidence.batches, evidence.kills)
    since = committed_since(answered, taken, len(evidence.input_records))
    assert (since < NEVER).all()
    assert called_again(evidence.lines, since) == 0
    names = {
        key: index
        for index, key in enumerate(sorted({record.key or b"" for record in evidence.input_records}))
    }
    keys = np.zeros(len(evidence.input_records), np.int64)
    keys[[number_of(record.value or b"") for record in evidence.input_records]] = [
        names[record.key or b""] for record in evidence.input_records
    ]
    async_workers = evidence.lines["pid"].astype(np.int64) * len(names)
    assert overlaps(evidence.lines, keys[evidence.lines["number"]] + async_workers) == 0


@pytest.mark.parametrize(("guarantee", "seed", "targets"), RUNS, ids=[f"{run[0]}-{run[1]}" for run in RUNS])
def test_no_record_is_lost_and_no_committed_record_is_called_again(
    guarantee: Guarantee, seed: int, targets: tuple[Target, ...], tmp_path: Path
) -> None:
    report, evidence = run_with_kills(guarantee, seed, targets, tmp_path)
    assert report.ok, str(report)
    assert sorted(kill.target for kill in report.kills) == sorted(targets)
    assert not any(
        "committed offsets" in end for end in report.ends
    )  # a start does not wait for an abandoned transaction
    check_commits(evidence)
    check_calls(evidence, guarantee)
    write_result(
        f"kills-{guarantee.replace('_', '-')}-{seed}",
        records=len(evidence.input_records),
        kills=dict(Counter(targets)),
        lost=report.findings.lost,
        results_again=report.findings.duplicated,
        commits=len(evidence.commits),
        beyond_an_unfinished_record=0,
        called_after_its_commit=0,
        results_of_calls_again=len(lines_of(evidence.lines, END)) - len(evidence.input_records),
    )
