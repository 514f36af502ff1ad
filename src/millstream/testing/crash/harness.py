"""The harness: runs an application, writes its workload, carries out the faults of a plan, and checks the results.

One thread does all work in turn. It watches the progress, writes more of the workload, and, like a supervisor, restarts the application
when it has ended. If there is no progress, it checks, like an operator, whether the broker has lost transactions or offsets. The workload
stays a few micro-batches ahead of the application, so input keeps arriving while the application is down, and there is always more to
process at a kill. After each kill, the run continues when the application has made progress. At the end, the group must have no lag.

After the start of the application, no event is an error of the harness: a run that does not finish also has a report, with the reason and
the results so far.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from millstream.core.model import serdes
from millstream.core.model.errors import MillstreamError
from millstream.core.topology.internal import commits_topic
from millstream.drivers.spark.clock import host_clock
from millstream.testing.crash.app import App, Entry, Guarantee, Job
from millstream.testing.crash.comparison import outcome
from millstream.testing.crash.crash_report import Kill, Report
from millstream.testing.crash.faults import Faults, FaultTargets
from millstream.testing.crash.journal import journals_of
from millstream.testing.crash.kill_plan import FAULTS, Again, Fault, KillPoint, Target, plan_kills
from millstream.testing.crash.ongoing_changes import Changes
from millstream.testing.crash.processes import CrashedProgram, CrashTestError
from millstream.testing.crash.setup import (
    PARTITIONS,
    Engine,
    Setup,
    checked_targets,
    create_topics,
    default_records,
    home_of,
    plan_of,
    surroundings,
)
from millstream.testing.crash.stream import (
    Feeder,
    Watch,
    age_ms,
    lacks_coordinator,
    moved,
    transaction_is_open,
)
from millstream.testing.kafka import EmbeddedKafkaError

T = TypeVar("T")

STOPS_S = (2.0, 10.0, 75.0)
"""The durations for which victims are stopped, in seconds; the last exceeds the default ``transaction_timeout_ms``."""

_PAUSE_S = 0.05
_GLANCE_S = 0.001  # between checks for an open transaction, which lasts only a few ms
_STUCK_S = 120.0  # a check starts a JVM per broker; on a loaded machine, recovery alone may take a minute
_TASK_TIMEOUT_MS = 300_000  # the default of the setting task_timeout_ms
_LONGER_S = 120.0  # longer than task_timeout_ms, so that the application reaches its own timeout first
_FAILURES = 4


class _SpoiledError(CrashTestError):
    """The broker violated one of its own guarantees, so the run proves nothing about the application."""


def run_with_crashes(
    app: App,
    *,
    guarantee: Guarantee = "at_least_once",
    kills: int = 4,
    seed: int = 1,
    targets: Sequence[Target] | None = None,
    records: int | None = None,
    keep_logs: str | Path | None = None,
    engine: Engine = "lmdb",
    brokers: int = 1,
    stops: Sequence[float] = STOPS_S,
    faults: Sequence[Fault] = FAULTS,
    twice: bool = True,
    disk: str | Path | None = None,
) -> Report:
    """Run an application on an embedded broker, kill parts of it, and compare its results with its oracle.

    Args:
        app: The application.
        guarantee: The setting ``processing_guarantee``, which the results must satisfy.
        kills: The number of faults. The second kill of a double fault does not count.
        seed: Determines workload, kill points and victims.
        targets: The possible targets. None uses all that apply, except those on request (``kill_plan.ON_REQUEST``).
        records: The number of records in the workload; None derives it from the number of kills.
        keep_logs: Directory in which logs, checkpoint, state and broker data are kept. None uses a temporary directory, which is kept
            only if the run was not right.
        engine: The setting ``store_engine``.
        brokers: The number of brokers. One is killed at a time.
        stops: Durations in seconds for which some victims are stopped instead of killed; empty to kill all victims.
        faults: The possible faults of processes: ``kill``, ``stop``, ``slow``.
        twice: Whether some kills are followed by a second one before the application has recovered.
        disk: An existing directory on a small file system, for checkpoint and state. The target ``space`` fills it.

    Returns:
        The report; ``report.ok`` is True if the run finished and the guarantee was kept.

    Raises:
        CrashTestError: If the directory for the logs is not empty, or psutil is missing.
        ValueError: If a target is not possible: ``transaction`` and ``disk`` need exactly once, ``disk`` also needs changelog
            topics for all stores, ``async-worker`` an asynchronous operator, and ``space`` a disk.

    Example::

        report = run_with_crashes(APPS["word-count"], kills=2, seed=7)
        assert report.ok, str(report)
    """
    records = default_records(kills) if records is None else records
    disk = None if disk is None else Path(disk).absolute()
    chosen = checked_targets(app, guarantee, targets, small=disk is not None)
    setup = Setup(app, guarantee, seed, records, chosen, engine, brokers, disk)
    transactions = guarantee == "exactly_once"
    points = plan_kills(
        kills,
        setup.targets,
        records,
        seed,
        transactions=transactions,
        stops=stops,
        faults=faults,
        twice=twice,
    )
    home = home_of(keep_logs)
    report = None
    try:
        with ExitStack() as stack:
            run = _CrashRun(setup, surroundings(setup, home, stack), home)
            stack.callback(run.close)
            report = run.conduct(points)
        return report if report.ok else replace(report, data=str(home))
    finally:
        if keep_logs is None and (report is None or report.ok):
            shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(setup.state(home), ignore_errors=True)


class _CrashRun:
    """One run of an application under the harness, from its start to its report."""

    def __init__(self, setup: Setup, around: FaultTargets, home: Path) -> None:
        self._began = self._progress_at = time.monotonic()
        self._setup, self._id = setup, setup.app.name
        self._kafka = kafka = around.kafka
        self._state = around.state
        self._topics = create_topics(kafka, self._id, setup.app.output)
        servers = kafka.bootstrap_servers if around.network is None else around.network.servers
        settings = setup.settings(servers, str(self._state))
        self._stall_s = settings.get("task_timeout_ms", _TASK_TIMEOUT_MS) / 1000 + _LONGER_S
        self._program = CrashedProgram(
            home, Job(self._id, setup.app.topology, self._topics, settings, around.clock)
        )
        self._faults = Faults(around, self._id, self._program, self)
        self._feeder = self._create_feeder()
        given, changes = self._topics.input, setup.app.changes
        self._watch = Watch(kafka, self._id, given, self._topics.output, splits=setup.app.splits)
        self._changes = Changes(changes, kafka.bootstrap_servers, given, self._state / self._id, setup.seed)
        self._starts = self._failures = self._struck_at_position = 0
        self.ends: list[str] = []  # the reasons why the application ended without being killed
        self._kills: list[Kill] = []

    def conduct(self, points: Sequence[KillPoint]) -> Report:
        """Run the application to the end of its workload, or until an error ends the run."""
        contents, unfinished, spoiled = None, "", False
        try:
            self.start()
            self._changes.start()
            for point in points:
                self._carry_out(point)
            self.until(self.at_end, "the end of the workload")
            contents = self._contents()
            written = (self._topics.output, *plan_of(self._setup.app).changelogs.values())
            self.until(lambda: self._is_stable(written), "the end of all transactions")
        except MillstreamError as error:
            unfinished, spoiled = error.message, isinstance(error, _SpoiledError)
        self._program.kill()
        if unfinished:
            self._revive_broker()
        report = Report(
            app=self._id,
            guarantee=self._setup.guarantee,
            seed=self._setup.seed,
            master=self._setup.master,
            kills=tuple(self._kills),
            restarts=max(self._starts - 1, 0),
            ends=tuple(self.ends),
            batches=self._batches(),
            seconds=round(time.monotonic() - self._began, 1),
            unfinished=unfinished,
            spoiled=spoiled,
            changes=self._changes.done,
        )
        return outcome(self._setup, self._kafka, self._topics, report, contents)

    def close(self) -> None:
        self._program.kill()
        self._watch.close()
        self._changes.close()
        self._feeder.close()

    def _create_feeder(self) -> Feeder:
        """Return the feeder of the workload. With a second input, write both inputs completely now."""
        app, count, seed = self._setup.app, self._setup.records, self._setup.seed
        workload = app.workload(count, seed)
        history = app.history(count, seed) if app.history is not None else []
        servers, later = self._kafka.bootstrap_servers, age_ms([*workload, *history])
        records = moved(workload, later)
        feeder = Feeder(servers, self._topics.input, records, PARTITIONS, splits=app.splits)
        if history:
            self._kafka.produce(self._topics.history, moved(history, later))
            feeder.feed(count)
            feeder.flush()
        return feeder

    # The application and its supervisor.

    def start(self) -> None:
        self._program.kill()
        self._program.start()
        self._starts += 1

    def _supervise(self) -> None:
        code = self._program.exit_code()
        if code is None:
            return
        self.ends.append(self._program.last_error() or f"exit code {code}")
        if self._watch.processed < self._setup.records:  # afterwards no start can make progress
            self._failures += 1
        if self._failures > _FAILURES:
            raise self._failure(f"ended {self._failures} times without progress, last with exit code {code}")
        self.start()

    def until(self, holds: Callable[[], T], what: str, *, pause_s: float = _PAUSE_S) -> T:
        """Feed and supervise the application until ``holds`` returns a true value, and return it."""
        self._progress_at = now = time.monotonic()
        helped_at = due = now
        while not (answer := holds()):
            if (now := time.monotonic()) >= due:
                due = now + _PAUSE_S
                self._supervise()
                if self._watch.look():
                    self._progress_at, self._failures = now, 0
                elif now > self._progress_at + self._stall_s:
                    raise self._failure(
                        f"made no progress for {self._stall_s:.0f} s; it should have reached {what}"
                    )
                if now > max(self._progress_at, helped_at) + _STUCK_S:
                    self._check_broker()
                    helped_at = time.monotonic()
                self._feeder.feed(self._watch.processed + self._setup.lead)
            self._feeder.wait(pause_s)
        return answer

    def _check_broker(self) -> None:
        """End the run if the broker has lost offsets or a transaction, because the run then proves nothing about the application.

        The broker may have acknowledged the commit of a lost transaction, so neither waiting nor aborting restores its records.
        """
        for group in self._groups:
            if lacks_coordinator(self._kafka, group, self._topics.input):
                raise self._bad_broker(
                    f"has not loaded the offsets of group {group!r} since it was started again"
                )
        if not self._kafka.hanging_transactions():
            return
        self._program.kill()
        # With the program killed, no transaction starts or ends, so a transaction found now is really hanging.
        if hanging := self._kafka.hanging_transactions():
            raise self._bad_broker(f"has lost a transaction in {len(hanging)} partitions, first {hanging[0]}")
        self.start()

    @property
    def _groups(self) -> list[str]:
        marks = [commits_topic(self._id)] if self._setup.guarantee == "exactly_once" else []
        return [self._id, *marks]

    def _bad_broker(self, what: str) -> _SpoiledError:
        return _SpoiledError(
            f"the broker itself {what}: run {self._id!r} with seed {self._setup.seed} does not test the application. "
            "Run it with another seed"
        )

    def _failure(self, what: str) -> CrashTestError:
        return CrashTestError(
            f"the application {self._id!r} {what}; {self._watch.processed:,} of {self._setup.records:,} records are "
            f"processed. The end of its log:\n{self._program.last_words()}"
        )

    def _revive_broker(self) -> None:
        self._kafka.resume()
        try:
            _ = self._kafka.pid
        except EmbeddedKafkaError:
            self._kafka.restart()

    # Kills.

    def _carry_out(self, point: KillPoint) -> None:
        self.until(lambda: self._watch.processed >= point.position, f"record {point.position:,}")
        due = time.monotonic() + point.delay_ms / 1000
        self.until(lambda: time.monotonic() >= due, "the moment of a kill")
        hit = point.in_transaction and self._await_transaction()
        slowed = point.slow and point.stop_s > 0
        kill = Kill(point.target, 0, None, in_transaction=hit, stopped_s=point.stop_s, slowed=slowed)
        struck_at = self._strike(kill, point.choice)
        if (again := point.again) is not None and self._comes_before_progress(again):
            self._strike(Kill(again.target, 0, None, again=again.moment), again.choice)
        self.until(self._has_moved, f"a batch after the kill of {self._kills[-1].target}")
        recovery_s = round(time.monotonic() - struck_at, 1)
        self._kills[-1] = replace(self._kills[-1], recovery_s=recovery_s)

    def _strike(self, kill: Kill, choice: float) -> float:
        """Carry out and record a fault; return its start time (``time.monotonic``)."""
        began = time.monotonic()
        self._kills.append(replace(kill, position=self._watch.processed, at_ms=host_clock()))
        victim = self._faults.strike(kill, choice)
        self._watch.look()
        self._struck_at_position = self._watch.processed
        self._kills[-1] = replace(self._kills[-1], victim=victim, position=self._struck_at_position)
        return began

    def _comes_before_progress(self, again: Again) -> bool:
        """Wait for the moment of a second kill; return whether it came before any progress."""
        self.until(lambda: self._has_come(again) or self._has_moved(), f"a {again.moment}")
        return not self._has_moved()

    def _has_come(self, again: Again) -> bool:
        if again.moment == "transaction":
            return self._watch.transaction_is_open()
        return bool(self._program.victims(again.moment))

    def _has_moved(self) -> bool:
        """Return whether there was progress since the last fault.

        While no driver runs, the broker may still complete the last commit of the killed one, which is not progress.
        """
        if self._watch.processed > self._struck_at_position and not self._program.victims("driver"):
            self._struck_at_position = self._watch.processed
        return self._watch.processed > self._struck_at_position or self.at_end()

    def _await_transaction(self) -> bool:
        """Wait until a transaction is open or the workload has ended; return whether the workload has not ended."""
        self.until(
            lambda: self._watch.transaction_is_open() or self.at_end(),
            "an open transaction",
            pause_s=_GLANCE_S,
        )
        return not self.at_end()

    def at_end(self) -> bool:
        """Return whether the whole workload has been processed."""
        return self._watch.processed == self._setup.records

    def pause(self, seconds: float) -> None:
        """Wait while only the feeder works."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._feeder.wait(left)

    # The end.

    def _contents(self) -> Mapping[Entry, Any]:
        """Query the application for the contents of its stores, if its topology reads the ask topic."""
        if self._topics.ask not in plan_of(self._setup.app).external_topics:
            return {}
        for partition in range(PARTITIONS):
            self._kafka.produce(self._topics.ask, [(None, "contents", 1)], partition=partition)
        self.until(self._has_answered, "the contents of its stores")
        answers = self._kafka.consume(self._topics.contents, isolation="read_committed")
        contents = journals_of(answers, serdes.pickle, serdes.pickle)
        return {entry: values[-1] for entry, values in contents.items()}

    def _has_answered(self) -> bool:
        asked, answers = self._topics.ask, self._topics.contents
        answered = self._kafka.committed(self._id, asked) == self._kafka.end_offsets(asked)
        return answered and self._is_stable([answers])

    def _is_stable(self, topics: Iterable[str]) -> bool:
        try:
            return not any(transaction_is_open(self._kafka, topic) for topic in topics)
        except EmbeddedKafkaError:
            return False

    def _batches(self) -> int:
        """Return the number of committed micro-batches, from the newest file in Spark's commit log."""
        commits = (self._state / self._id / "checkpoint" / "commits").glob("[0-9]*")
        return 1 + max((int(commit.name) for commit in commits), default=-1)
