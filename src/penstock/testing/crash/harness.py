"""The harness: runs an application, feeds it, kills it at the points of a plan, and looks at what is left.

One thread does everything in turn: it looks at the progress, hands over more of the workload, and starts the application
again when it has ended, as a supervisor would; when nothing moves, it looks for transactions and offsets that the broker itself
has forgotten, as an operator would. The workload stays a few micro-batches ahead of the application, so it goes
on arriving while the application is down, and there is always more to do at a kill. After each kill the run goes on when the
application has made progress; at the end the group must have no lag.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.model import serdes
from penstock.core.plan.asynchronous import Asynchronous, IssuingProcess
from penstock.core.plan.internal import commits_topic
from penstock.core.plan.split import Plan
from penstock.core.plan.stores import KeyValueSpec
from penstock.testing.crash.app import App, Entry, Expected, Guarantee, Job, Topics
from penstock.testing.crash.journal import check_contents, check_journals, journals_of
from penstock.testing.crash.plan import KillPoint, Target, plan_kills, possible_targets
from penstock.testing.crash.processes import BrokerFaultError, CrashTestError, Program, kill_one
from penstock.testing.crash.report import Kill, Report
from penstock.testing.crash.stream import Feeder, Watch, lacks_coordinator
from penstock.testing.kafka import EmbeddedKafka, Outgoing

T = TypeVar("T")

_PARTITIONS = 2
_BATCH_RECORDS = 250
_LEAD = 4 * _BATCH_RECORDS
_PAUSE_S = 0.05
_GLANCE_S = 0.001  # between two looks for a transaction, which is open for a few milliseconds
_STUCK_S = 30.0
_STALL_S = 180.0
_FAILURES = 4

_WITH_EXECUTORS = "local-cluster[2,1,1024]"
_WITHOUT_EXECUTORS = "local[2,4]"  # two threads, and like a cluster four attempts per task


def default_records(kills: int) -> int:
    """Give a length of the workload that leaves several micro-batches between two kills."""
    return 3_000 + 1_500 * kills


def run_with_crashes(
    app: App,
    *,
    guarantee: Guarantee = "at_least_once",
    kills: int = 4,
    seed: int = 1,
    targets: Sequence[Target] | None = None,
    records: int | None = None,
    keep_logs: str | Path | None = None,
) -> Report:
    """Run an application on an embedded broker, kill parts of it, and compare what it wrote with its oracle.

    Args:
        app: The application.
        guarantee: The setting ``processing_guarantee``, and what is asked of the results.
        kills: How often something is killed.
        seed: Workload, kill points and victims are made from it.
        targets: What may be killed; None takes all that are possible.
        records: Length of the workload; None takes one that suits the number of kills.
        keep_logs: Directory for logs, checkpoint and state, which stay there; None uses a temporary one.

    Returns:
        What happened; ``report.ok`` says whether the guarantee was kept.

    Raises:
        CrashTestError: If the application cannot be started, fails again and again, or makes no progress; if the directory
            for the logs is not empty, or psutil is missing.
        BrokerFaultError: If the broker has forgotten a transaction (KIP-664) or offsets, so that the run says nothing.
        ValueError: If a target is not possible: ``transaction`` and ``disk`` need exactly once, ``disk`` stores that all
            have changelog topics, and ``station`` an operator that makes calls.

    Example::

        report = run_with_crashes(APPS["word-count"], kills=2, seed=7)
        assert report.ok, str(report)
    """
    targets = checked_targets(app, guarantee, targets)
    records = default_records(kills) if records is None else records
    master = _WITH_EXECUTORS if "executor" in targets else _WITHOUT_EXECUTORS
    with ExitStack() as stack:
        if keep_logs is None:
            scratch = tempfile.TemporaryDirectory(prefix="penstock-crash-", ignore_cleanup_errors=True)
            home = Path(stack.enter_context(scratch))
        else:
            home = Path(keep_logs).absolute()
            home.mkdir(parents=True, exist_ok=True)
            if any(home.iterdir()):
                raise CrashTestError(
                    f"{home} is not empty: a run needs a directory of its own to keep its logs"
                )
        kafka = stack.enter_context(EmbeddedKafka(partitions=_PARTITIONS, directory=home / "kafka"))
        run = _Run(_Setup(app, guarantee, seed, records, master), kafka, home)
        stack.callback(run.close)
        transactions = guarantee == "exactly_once"
        return run.conduct(plan_kills(kills, targets, records, seed, transactions=transactions))


def checked_targets(app: App, guarantee: Guarantee, targets: Sequence[Target] | None) -> tuple[Target, ...]:
    """Give the targets of a run.

    Raises:
        ValueError: If one of those given is not possible for the application and the guarantee.
    """
    possible = possible_targets(guarantee, rebuilds=_rebuilds(app), calls=_calls(app))
    for target in targets or ():
        if target not in possible:
            raise ValueError(
                f"the target {target!r} is not for {app.name!r} with {guarantee!r}; its targets are {', '.join(possible)}"
            )
    return possible if targets is None else tuple(targets)


@dataclass(frozen=True)
class _Setup:
    """What a run is made of."""

    app: App
    guarantee: Guarantee
    seed: int
    records: int
    master: str


class _Run:
    """An application under the harness, from its start to its report."""

    def __init__(self, setup: _Setup, kafka: EmbeddedKafka, home: Path) -> None:
        self._began = self._progress_at = time.monotonic()
        self._setup = setup
        self._id = setup.app.name
        self._kafka = kafka
        self._state = home / "state"
        self._topics = _create_topics(kafka, self._id)
        self._program = Program(home, self._job())
        self._feeder = self._fed()
        self._watch = Watch(kafka, self._id, self._topics.input, self._topics.output)
        self._starts = 0
        self._failures = 0
        self._ends: list[str] = []

    def conduct(self, points: Sequence[KillPoint]) -> Report:
        """Run the application to the end of its workload."""
        self._start()
        kills = tuple(self._carry_out(point) for point in points)
        self._until(self._at_end, "the end of the workload")
        told = self._contents()
        self._until(lambda: not self._watch.transaction_is_open(), "the end of all transactions")
        self._program.kill()
        return self._report(kills, told)

    def close(self) -> None:
        """End the application."""
        self._program.kill()
        self._watch.close()

    def _fed(self) -> Feeder:
        """Give what writes the workload; a second input, and all that belongs to it, is written now."""
        app, count, seed = self._setup.app, self._setup.records, self._setup.seed
        workload = app.workload(count, seed)
        history = app.history(count, seed) if app.history is not None else []
        later = _age_ms([*workload, *history])
        feeder = Feeder(
            self._kafka.bootstrap_servers, self._topics.input, _moved(workload, later), _PARTITIONS
        )
        if history:
            self._kafka.produce(self._topics.history, _moved(history, later))
            feeder.feed(count)
            feeder.flush()
        return feeder

    # The application and its supervisor.

    def _job(self) -> Job:
        settings = {
            "bootstrap_servers": self._kafka.bootstrap_servers,
            "state_dir": str(self._state),
            "processing_guarantee": self._setup.guarantee,
            "master": self._setup.master,
            "max_batch_records": _BATCH_RECORDS,
            "on_other_checkpoint": "take_over",  # the disk is killed with the checkpoint on it
            "statestore_cache_max_bytes": 0,  # every update is told: what is merged away cannot be missed
            **self._setup.app.settings,
        }
        settings["spark"] = {"spark.ui.enabled": "false", **settings.get("spark", {})}
        return Job(self._id, self._setup.app.topology, self._topics, settings)

    def _start(self) -> None:
        """Start the application, when nothing is left of an earlier start."""
        self._program.kill()
        self._program.start()
        self._starts += 1

    def _supervise(self) -> None:
        code = self._program.exit_code()
        if code is None:
            return
        self._failures += 1
        self._ends.append(self._program.last_error() or f"exit code {code}")
        if self._failures > _FAILURES:
            raise self._trouble(f"ended {self._failures} times without progress, last with exit code {code}")
        self._start()

    def _until(self, holds: Callable[[], T], what: str, *, pause_s: float = _PAUSE_S) -> T:
        """Let everything go on until something holds, and give what it returned."""
        self._progress_at = now = time.monotonic()
        helped_at = due = now
        while not (answer := holds()):
            if (now := time.monotonic()) >= due:
                due = now + _PAUSE_S
                self._supervise()
                if self._watch.look():
                    self._progress_at, self._failures = now, 0
                elif now > self._progress_at + _STALL_S:
                    raise self._trouble(
                        f"made no progress for {_STALL_S:.0f} s; it should have come to {what}"
                    )
                if now > max(self._progress_at, helped_at) + _STUCK_S:
                    self._check_broker()
                    helped_at = time.monotonic()
                self._feeder.feed(self._watch.processed + _LEAD)
            self._feeder.wait(pause_s)
        return answer

    def _check_broker(self) -> None:
        """End a run that says nothing about the application, because of what the broker has forgotten.

        Of a transaction it may have acknowledged the commit before, so neither waiting nor aborting it gives the records back.
        """
        for group in self._groups:
            if lacks_coordinator(self._kafka, group, self._topics.input):
                raise self._spoiled(
                    f"has not loaded the offsets of group {group!r} since it was started again"
                )
        if not self._kafka.hanging_transactions():
            return
        self._program.kill()
        # Only now nobody begins or ends a transaction, so that what is found is not a moment in the life of a good one.
        if hanging := self._kafka.hanging_transactions():
            raise self._spoiled(
                f"has forgotten a transaction in {len(hanging)} partitions, first {hanging[0]} (KIP-664)"
            )
        self._start()

    @property
    def _groups(self) -> list[str]:
        """Give the groups without which the application cannot go on."""
        marks = [commits_topic(self._id)] if self._setup.guarantee == "exactly_once" else []
        return [self._id, *marks]

    def _spoiled(self, what: str) -> BrokerFaultError:
        return BrokerFaultError(
            f"the broker itself {what}: run {self._id!r} with seed {self._setup.seed} says nothing about the application. "
            "Run it with another seed"
        )

    def _trouble(self, what: str) -> CrashTestError:
        return CrashTestError(
            f"the application {self._id!r} {what}; {self._watch.processed:,} of {self._setup.records:,} records are "
            f"processed. The end of its log:\n{self._program.last_words()}"
        )

    # Kills.

    def _carry_out(self, point: KillPoint) -> Kill:
        self._until(lambda: self._watch.processed >= point.position, f"record {point.position:,}")
        due = time.monotonic() + point.delay_ms / 1000
        self._until(lambda: time.monotonic() >= due, "the moment of a kill")
        hit = point.in_transaction and self._await_transaction()
        killed_at = time.monotonic()
        victim = self._kill(point)
        at_ms = _now_ms()
        self._watch.look()
        before = self._watch.processed
        self._until(
            lambda: self._watch.processed > before or self._at_end(),
            f"a batch after the kill of {point.target}",
        )
        return Kill(point.target, before, round(time.monotonic() - killed_at, 1), victim, hit, at_ms)

    def _await_transaction(self) -> bool:
        """Wait for an open transaction as long as there can be one, and tell whether there was."""
        self._until(
            lambda: self._watch.transaction_is_open() or self._at_end(),
            "an open transaction",
            pause_s=_GLANCE_S,
        )
        return not self._at_end()

    def _at_end(self) -> bool:
        return self._watch.processed == self._setup.records

    def _kill(self, point: KillPoint) -> str:
        """Kill what is to be killed, and start again what the application cannot; name a single process."""
        if point.target in ("program", "host", "disk"):
            self._program.kill()
            if point.target == "host":
                shutil.rmtree(self._state / self._id / "tasks", ignore_errors=True)
            if point.target == "disk":
                shutil.rmtree(self._state)
            self._start()
        elif point.target in ("broker", "transaction"):
            self._kafka.kill()
            self._kafka.restart()
        else:
            found = self._until(lambda: self._program.victims(point.target), f"a running {point.target}")
            return kill_one(found[int(point.choice * len(found))])
        return ""

    # The end.

    def _contents(self) -> Mapping[Entry, Any]:
        """Ask the application for the contents of its stores, if it answers such questions."""
        if self._topics.ask not in _plan(self._setup.app, self._topics).external_topics:
            return {}
        for partition in range(_PARTITIONS):
            self._kafka.produce(self._topics.ask, [(None, "contents", 1)], partition=partition)
        self._until(self._has_answered, "the contents of its stores")
        answers = self._kafka.consume(self._topics.contents, isolation="read_committed")
        told = journals_of(answers, serdes.pickle, serdes.pickle)
        return {entry: values[-1] for entry, values in told.items()}

    def _has_answered(self) -> bool:
        asked = self._kafka.end_offsets(self._topics.ask)
        return self._kafka.committed(self._id, self._topics.ask) == asked

    def _report(self, kills: tuple[Kill, ...], told: Mapping[Entry, Any]) -> Report:
        setup, app = self._setup, self._setup.app
        given = self._kafka.consume(self._topics.input)
        if len(given) != setup.records:
            raise CrashTestError(
                f"the input topic has {len(given):,} records instead of {setup.records:,}; this is a bug of the harness"
            )
        history = self._kafka.consume(self._topics.history) if app.history is not None else []
        expected = app.oracle([*given, *history])
        results = self._kafka.consume(self._topics.output, isolation="read_committed")
        wrong_states, examples = check_contents(expected, told)
        wrong_changelogs, more_examples = check_contents(*self._changelogs(expected))
        return Report(
            app=app.name,
            guarantee=setup.guarantee,
            seed=setup.seed,
            master=setup.master,
            records=len(given),
            kills=kills,
            restarts=self._starts - 1,
            ends=tuple(self._ends),
            batches=self._batches(),
            outputs=len(results),
            aborted=len(self._kafka.consume(self._topics.output)) - len(results),
            findings=check_journals(expected.journals, journals_of(results, app.key, app.value)),
            wrong_states=wrong_states,
            wrong_changelogs=wrong_changelogs,
            went_back=self._watch.went_back,
            examples=examples + more_examples,
            seconds=round(time.monotonic() - self._began, 1),
        )

    def _changelogs(self, expected: Expected) -> tuple[Expected, Mapping[Entry, Any]]:
        """Read what the changelog topics of key-value stores hold, and give it with what they should hold."""
        plan = _plan(self._setup.app, self._topics)
        specs = {
            name: spec
            for sub in plan.subtopologies
            for name, spec in sub.stores.items()
            if name in plan.changelogs and isinstance(spec, KeyValueSpec)
        }
        held: dict[Entry, Any] = {}
        for name, spec in specs.items():
            records = self._kafka.consume(plan.changelogs[name], isolation="read_committed")
            for key, values in journals_of(records, spec.key, spec.value).items():
                if values[-1] is not None:
                    held[name, key] = values[-1]
        return Expected({}, {name: expected.stores.get(name, {}) for name in specs}), held

    def _batches(self) -> int:
        """Count the micro-batches in Spark's commit log, which keeps the latest ones under their numbers."""
        commits = (self._state / self._id / "checkpoint" / "commits").glob("[0-9]*")
        return 1 + max((int(commit.name) for commit in commits), default=-1)


def _age_ms(records: Sequence[Outgoing]) -> int:
    """Give how far the newest record lies back, by its timestamp.

    Workloads are moved by so much. A broker tells the age of a producer by the timestamps of its records. When it starts
    again it forgets one whose records are older than a day, and takes the same records once more if they are sent again.
    """
    newest = max((record[2] for record in records if len(record) == 3), default=0)
    return _now_ms() - newest


def _now_ms() -> int:
    return int(time.time() * 1000)  # noqa: TID251 - the harness lives in the real world


def _moved(records: Sequence[Outgoing], later_ms: int) -> list[Outgoing]:
    return [(*record[:2], record[2] + later_ms) if len(record) == 3 else record for record in records]


def _plan(app: App, topics: Topics) -> Plan:
    return app.topology(topics).plan(app.name)


def _rebuilds(app: App) -> bool:
    """Tell whether everything can be rebuilt from Kafka: all stores have changelog topics."""
    plan = _plan(app, _topics_of(app.name))
    return set(plan.changelogs) == set(plan.store_fingerprints())


def _calls(app: App) -> bool:
    """Tell whether something of it is called outside its tasks."""
    parts = _plan(app, _topics_of(app.name)).subtopologies
    return any(
        isinstance(node, Asynchronous | IssuingProcess) for part in parts for node in part.nodes.values()
    )


def _topics_of(name: str) -> Topics:
    return Topics(*(f"{name}-{part}" for part in ("input", "output", "ask", "contents", "history")))


def _create_topics(kafka: EmbeddedKafka, name: str) -> Topics:
    topics = _topics_of(name)
    for topic in (topics.input, topics.ask, topics.contents, topics.history):
        kafka.create_topic(topic)
    # Results carry the time at which the broker took them, so that they can be compared with what happened elsewhere.
    kafka.create_topic(topics.output, config={"message.timestamp.type": "LogAppendTime"})
    return topics
