"""``python -m bench.scaling``: what the Spark driver does per micro-batch as partitions, Spark tasks and executors grow.

Each case has a process of its own. It counts records in a topic; in each round every partition gets one record (or only one
partition does), all of them are read in one micro-batch, and the phases of that micro-batch are taken: Spark's own durations,
and its event log for what ran inside of a job. Prints a table, and what a fixed part and a part per partition explain of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression, median

import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

import millstream as ms
from bench.jobs import topology
from bench.ours import await_processed, await_progress, took_by_batch
from bench.processes import run_for_json
from millstream.testing import EmbeddedKafka

PHASES = ("plan", "wal", "queryPlanning", "reads and commit", "job", "commit", "total", "JVM", "Python")
"""The planner; the offset log; Spark's plan; what the sink's commit and the planning of reads take; the job; the commit log; all of the
micro-batch. The last two are processor time: of all JVMs, and of all Python processes but the program that feeds the topic."""

_WARM = 3
_TIMEOUT_S = 520.0


@dataclass(frozen=True)
class Case:
    """What is varied.

    Attributes:
        partitions: Partitions of the topic, and so tasks of the engine.
        active: Partitions that get a record in each round.
        spark_tasks: Shuffle partitions.
        executors: Processes on this host with one core each; 0 is a local session with two threads.
    """

    partitions: int
    active: int
    spark_tasks: int = 2
    executors: int = 0

    @property
    def master(self) -> str:
        """Spark's master."""
        return f"local-cluster[{self.executors},1,1024]" if self.executors else "local[2]"


AXES: Mapping[str, Sequence[Case]] = {
    "partitions": [Case(n, n) for n in (1, 10, 100, 1000)],
    "quiet": [Case(n, 1) for n in (10, 100, 1000)],
    "spark-tasks": [Case(100, 100, n) for n in (2, 8, 32)],
    "executors": [Case(100, 100, max(n, 2), n) for n in (1, 2, 4, 8)],
}


def measured(case: Case, servers: str, source: str, sink: str, rounds: int) -> dict[str, list[float]]:
    """Run a case in this process; give the milliseconds of each phase per round."""
    with tempfile.TemporaryDirectory(prefix="bench-scaling-", ignore_cleanup_errors=True) as home:
        events = Path(home, "events")
        events.mkdir()
        spark = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
        }
        app = ms.Application(
            f"scaling-{sink}",
            topology("count", source, sink),
            bootstrap_servers=servers,
            state_dir=home,
            master=case.master,
            shuffle_partitions=case.spark_tasks,
            spark=spark,
            output="quiet",
        )
        with app.start() as running:
            batches = dict(_rounds(running, case, servers, source, rounds))
            durations = took_by_batch(running)
            assert running._run.session.made is not None
            context = running._run.session.made.sparkContext
        context.stop()  # ends the event log
        (log,) = events.iterdir()
        jobs = job_ms(log.read_text().splitlines())
    phases = [{**phases_of(durations[batch], jobs[batch]), **used} for batch, used in batches.items()]
    return {name: [phase[name] for phase in phases] for name in PHASES}


def _rounds(
    running: ms.RunningApplication, case: Case, servers: str, source: str, rounds: int
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the micro-batch of each round that counts, and the processor time that it took."""
    producer = Producer({"bootstrap.servers": servers})
    for number in range(_WARM + rounds):
        running.pause()  # the records of a round belong into one micro-batch
        active = case.partitions if number < _WARM else case.active  # every task has been there once
        for partition in range(active):
            producer.produce(source, b"x", b"%d" % partition, partition)
        assert producer.flush(60) == 0
        before, used = running.metrics()["processed_records"], _processor_ms()
        running.resume()
        await_processed(running, before + active)
        batch = running.metrics()["batches"] - 1
        await_progress(running, batch)
        if number >= _WARM:
            now = _processor_ms()
            yield batch, {name: now[name] - used[name] for name in now}


def _processor_ms() -> dict[str, float]:
    """Return the processor time of child processes in ms; the time of ended ones is counted by the process that waited for them."""
    used = {"JVM": 0.0, "Python": 0.0}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            java = process.name() == "java"
            used["JVM" if java else "Python"] += 1000 * (times.user + times.system)
            used["Python"] += 1000 * (times.children_user + times.children_system)
    return used


def job_ms(lines: Sequence[str]) -> dict[int, int]:
    """Return how long the jobs of each micro-batch ran, from the lines of Spark's event log."""
    batches: dict[int, int] = {}
    began: dict[int, tuple[int, int]] = {}
    for line in lines:
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            batch = (event.get("Properties") or {}).get("streaming.sql.batchId")
            if batch is not None:
                began[event["Job ID"]] = int(batch), event["Submission Time"]
        elif event["Event"] == "SparkListenerJobEnd" and event["Job ID"] in began:
            of, begin_ms = began[event["Job ID"]]
            batches[of] = batches.get(of, 0) + event["Completion Time"] - begin_ms
    return batches


def phases_of(durations: Mapping[str, int], job: int) -> dict[str, float]:
    """Return the phases of a micro-batch, in milliseconds.

    Args:
        durations: Spark's own.
        job: How long its job ran.
    """
    known = {
        "plan": durations["latestOffset"],
        "wal": durations["walCommit"],
        "queryPlanning": durations["queryPlanning"],
        "reads and commit": max(durations["addBatch"] - job, 0),
        "job": job,
        "commit": durations["commitOffsets"],
    }
    return {**known, "total": durations["triggerExecution"]}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling")
    parser.add_argument("--axes", default=",".join(AXES), help=f"of {','.join(AXES)}")
    parser.add_argument("--at", type=int, help="only the case with this index in its axis")
    parser.add_argument("--rounds", type=int, default=10, help="micro-batches per case that count (10)")
    parser.add_argument("--out", type=Path, help="file of results")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        case = json.loads(options.case)
        print(json.dumps(measured(Case(**case.pop("case")), **case)))
        return 0
    found = {axis: list(_cases(axis, options.rounds, options.at)) for axis in options.axes.split(",")}
    if options.out:
        results = {
            axis: [{**asdict(case), "ms": times} for case, times in runs] for axis, runs in found.items()
        }
        options.out.write_text(json.dumps(results) + "\n")
    return 0


def _cases(axis: str, rounds: int, index: int | None) -> Iterator[tuple[Case, dict[str, list[float]]]]:
    console = Console(width=None if sys.stdout.isatty() else 150)
    runs: list[tuple[Case, dict[str, list[float]]]] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-scaling-", ignore_cleanup_errors=True) as scratch,
        EmbeddedKafka(heap="1g") as kafka,
    ):
        for number, case in enumerate(AXES[axis]):
            if index not in (None, number):
                continue
            topics = f"source-{number}", f"sink-{number}"
            for topic in topics:
                kafka.create_topic(topic, case.partitions if topic == topics[0] else 1)
            arguments = {
                "case": asdict(case),
                "servers": kafka.bootstrap_servers,
                "source": topics[0],
                "sink": topics[1],
                "rounds": rounds,
            }
            command = [sys.executable, "-m", "bench.scaling", "--case", json.dumps(arguments)]
            times = run_for_json(command, scratch=Path(scratch), timeout_s=_TIMEOUT_S)
            medians = ", ".join(f"{phase} {median(times[phase]):.0f}" for phase in PHASES)
            console.print(f"{case}, load {os.getloadavg()[0]:.1f}: {medians}")
            runs.append((case, times))
            yield case, times
    _show(console, axis, runs)


def _show(console: Console, axis: str, runs: Sequence[tuple[Case, Mapping[str, Sequence[float]]]]) -> None:
    table = Table(title=f"{axis}: ms per micro-batch, median (worst)")
    for head in ("partitions", "active", "Spark tasks", "executors", *PHASES):
        table.add_column(head, justify="right")
    for case, times in runs:
        cells = (f"{median(times[phase]):.0f} ({max(times[phase]):.0f})" for phase in PHASES)
        table.add_row(*map(str, (case.partitions, case.active, case.spark_tasks, case.executors)), *cells)
    console.print(table)
    if axis in ("partitions", "quiet") and len(runs) > 1:
        sizes = [case.partitions for case, _ in runs]
        for phase in PHASES:
            fit = linear_regression(sizes, [median(times[phase]) for _, times in runs])
            console.print(f"{phase}: {fit.intercept:.0f} ms and {fit.slope:.2f} ms per partition")


if __name__ == "__main__":
    sys.exit(main())
