"""One simulated run: an application of the product on the models of Spark and Kafka."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

from confluent_kafka import KafkaException

import millstream as ms
from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.runtime.inputs import WaitSettings
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import decode_manifest
from millstream.core.topology.analysis.ranges import in_ranges
from millstream.core.topology.evolution import Lineage, parts_of
from millstream.core.topology.layout import lay_out
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka import produce, transactions
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.executor import statelog
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.spec import SourceSpec, TopologySpec
from simulation.broker import Broker, Entry
from simulation.checks import Watch, WrongError, check_changelog, check_results, check_store
from simulation.clients import Producer, Reader
from simulation.faults import Faults
from simulation.query import Query
from simulation.scheduler import Actor, Process, Scheduler
from simulation.spark import (
    Attempt,
    Checkpoint,
    Host,
    QueryFailedError,
)
from simulation.topologies import KINDS, RESULTS, STORE, TOPIC, Kind

APPLICATION = "app"
CHECKPOINT = "c0ffee"
_PATIENCE_S = 60.0
_SETTINGS = {"bootstrap.servers": "model"}
_FEEDS_EVERY = 80
_WORDS = ("ash", "birch", "cedar", "elm", "fir", "larch", "oak", "yew")


@cache
def _plan(kind: Kind, exactly_once: bool) -> Plan:
    plan = kind.build().plan(APPLICATION, through_shuffle=not (exactly_once and kind.changelog))
    if kind.ranges == 1:
        return plan
    return replace(plan, subtopologies=tuple(in_ranges(sub, kind.ranges) for sub in plan.subtopologies))


@dataclass(frozen=True)
class Scene:
    """The application and the environment that a seed chooses.

    Attributes:
        kind: The kind of application.
        exactly_once: Whether the guarantee is exactly-once.
        engine: The engine of its local copies.
        hosts: Number of hosts.
        partitions: Number of Spark partitions.
        records: Number of records.
        max_records: Records per micro-batch.
        faults: The maximum number of faults.
        outlives: Whether executors outlive the driver for a while.
    """

    kind: Kind
    exactly_once: bool
    engine: Literal["disk", "memory"]
    hosts: int
    partitions: int
    records: int
    max_records: int
    faults: int
    outlives: bool


def scene_of(scheduler: Scheduler, kind: Kind | None, exactly_once: bool | None) -> Scene:
    """Choose the scene of a seed."""
    choose = scheduler.random
    chosen, once = choose.choice(KINDS), choose.random() < 0.7
    return Scene(
        kind or chosen,
        once if exactly_once is None else exactly_once,
        choose.choice(("disk", "memory")),
        choose.randint(1, 2),
        choose.randint(1, 2),
        choose.randint(8, 26),
        choose.randint(4, 16),
        choose.randint(0, 10),
        choose.random() < 0.6,
    )


class World:
    """The models, the application and their faults in one run."""

    def __init__(self, seed: int, directory: str, kind: Kind | None, exactly_once: bool | None) -> None:
        self.scheduler = Scheduler(seed)
        self.scene = scene = scene_of(self.scheduler, kind, exactly_once)
        self.broker = Broker(self.scheduler)
        self.plan = _plan(scene.kind, scene.exactly_once)
        self.layout = lay_out(self.plan, {TOPIC: 2})
        self.topology = TopologySpec(
            self.plan,
            self.layout,
            grouping_keys(self.layout.tasks),
            ms.ErrorPolicies(),
            {},
            Lineage(parts_of(self.plan, self.layout, {})),
            sender=None if scene.exactly_once else produce.KafkaSender(_SETTINGS),
        )
        topics = {TOPIC: 2, RESULTS: 2, self.plan.commits_topic: scene.partitions}
        changelogs = dict.fromkeys(self.plan.changelogs.values(), 2)
        for name, count in {**topics, **changelogs, **self.topology.internal_partitions()}.items():
            self.broker.create(name, count)
        self.reader = Reader(self.broker, APPLICATION, committed=scene.exactly_once)
        self.watch = Watch(self.broker, scene.kind, self.plan, exactly_once=scene.exactly_once)
        self.checkpoint = Checkpoint()
        self.hosts = [Host(f"host{n}", f"{directory}/{n}", self.scheduler) for n in range(scene.hosts)]
        self.driver = Process("driver")
        self.placed: dict[Actor, tuple[int, Host, Any]] = {}
        """Partition, host and worker of each attempt."""
        self.attempts: dict[Actor, Attempt] = {}
        self.senders: dict[Actor, Any] = {}
        """The producer of each attempt that sends at least once."""
        self.fed = False
        self.written = 0
        self._tokens = 0
        self._attempts = 0
        self.faults = Faults(self, scene.faults)

    def run(self) -> None:
        """Run to the end, and check the results.

        Raises:
            WrongError: If an invariant is violated.
        """
        self.scheduler.spawn("feeder", Process("outside"), self._feed)
        self.scheduler.spawn("user", Process("user"), self._use)
        self.scheduler.disturb = self.faults.disturb
        self.scheduler.run()
        self._check()

    # Parts of the application.

    def publisher(self, run: str) -> transactions.KafkaTransactions | None:
        """Return the transactional sender of a run of the application; None with at-least-once."""
        if not self.scene.exactly_once:
            return None
        return transactions.KafkaTransactions(_SETTINGS, _SETTINGS, APPLICATION, _PATIENCE_S, 60_000, run)

    def source(self, control: Any, run: str) -> SourceSpec:
        """Return the specification of the source."""
        return SourceSpec(
            self.topology,
            self.reader,
            self.reader,
            control,
            self.scene.max_records,
            1 << 20,
            2,
            "earliest",
            Initialization(),
            waits=WaitSettings(),
            clock=lambda: self.scheduler.now_ms,
            checkpoint=CHECKPOINT,
            run=run,
        )

    def host_spec(self) -> HostSpec:
        """Return the specification of the task host."""
        copies = CopiesSpec("", {self.scene.engine: self._open_copy}, {STORE: self.scene.engine}, 64 << 20)
        return HostSpec(
            self.topology,
            copies,
            listener=lambda progress: None,
            changelogs=self.reader,
            repeats_sends=not self.scene.exactly_once,
        )

    def token(self, size: int = 4) -> str:
        """Return a unique token."""
        self._tokens += 1
        return f"{self._tokens:0{2 * size}x}"

    def _open_copy(self, directory: str, memory_bytes: int, run: str) -> Any:
        _, host, worker = self.placed[self.acting]
        return host.copy(self.scene.engine, directory.strip("/"), worker)

    @property
    def acting(self) -> Actor:
        """The actor whose turn it is."""
        actor = self.scheduler._current
        assert actor is not None
        return actor

    # Actors.

    def _feed(self) -> None:
        choose = self.scheduler.random
        producer = (
            Producer(self.broker, {"transactional.id": "feeder"}, loses=0)
            if self.scene.exactly_once
            else None
        )
        if producer is not None:
            self._insist(producer.init_transactions)
        while self.written < self.scene.records:
            then = self.scheduler.steps + choose.randrange(_FEEDS_EVERY)
            self.scheduler.step("feeds", lambda: self.scheduler.steps >= then)  # noqa: B023
            count = choose.randint(1, 4)
            if producer is None or choose.random() < 0.5:
                self.feed(count)
                continue
            for _ in range(count):
                key, value = self._record()
                producer.produce(TOPIC, value, key, timestamp=self.scheduler.now_ms)
            keeps = choose.random() < 0.7
            self._insist(producer.commit_transaction if keeps else producer.abort_transaction)
        self.fed = True

    def feed(self, count: int) -> None:
        """Write records."""
        for _ in range(count):
            key, value = self._record()
            partition = TopicPartition(TOPIC, self.broker.partition_of(TOPIC, key))
            self.broker.append(partition, Entry(key, value, self.scheduler.now_ms))

    def _record(self) -> tuple[bytes, bytes]:
        self.written += 1
        key, word = self.scheduler.random.choice(_WORDS), self.scheduler.random.choice(_WORDS)
        return key.encode(), f"{self.written}:{word}".encode()

    def _insist(self, call: Any) -> None:
        while True:
            try:
                return call(1)
            except KafkaException:
                self.scheduler.step("tries again")

    def _use(self) -> None:
        """Start the application until all its work is done; then once more, with only the checkpoint and Kafka."""
        self._start_until_done()
        self.faults.over = True
        self.scheduler.step("waits for what is left", lambda: not self.running_attempts())
        self.feed(8)
        for host in self.hosts:
            host.restart_executor()
            if self.scheduler.random.random() < 0.5:
                host.lose_disk()
        self._start_until_done()
        self.scheduler.step("waits for what is left", lambda: not self.running_attempts())
        self.broker.closing = True

    def running_attempts(self) -> list[Actor]:
        """Return the actors of the attempts that are running."""
        return [actor for actor in self.scheduler.actors if actor in self.placed]

    def _start_until_done(self) -> None:
        while True:
            self.driver = Process("driver")
            self.query = query = Query(self)
            driver = self.driver
            actor = self.scheduler.spawn("driver", driver, query.run)
            self.scheduler.step("waits", lambda: actor.finished or not driver.alive)  # noqa: B023
            if actor.finished and actor.error is None and driver.alive:
                return
            if actor.error is not None and not isinstance(
                actor.error, (QueryFailedError, ms.MillstreamError)
            ):
                raise WrongError(f"the driver fails: {actor.error!r}") from actor.error
            for host in self.hosts:
                if not self.scene.outlives:
                    for process in host.processes():
                        self.scheduler.kill(process)
                host.restart_executor()

    def begin_attempt(self, name: str, number: int, work: Any) -> Attempt:
        """Begin an attempt of a task on some host."""
        host = self.scheduler.random.choice(self.hosts)
        worker = host.worker()
        self._attempts += 1

        def live() -> None:
            try:
                attempt.result = work()
            except (ms.MillstreamError, KafkaException, AssertionError):
                raise
            except Exception as error:
                raise WrongError(f"an attempt fails: {error!r}") from error
            finally:
                worker.busy = False

        actor = self.scheduler.spawn(
            f"{name}{number}#{self._attempts}@{worker.process.name}", worker.process, live
        )
        self.placed[actor] = (number, host, worker)
        attempt = self.attempts[actor] = Attempt(actor)
        return attempt

    # Checks at the end.

    def _check(self) -> None:
        once = self.scene.exactly_once
        newest = check_results(self.broker, self.scene.kind, self.plan, exactly_once=once)
        content = self._stored()
        check_store(content, newest)
        if self.scene.kind.changelog:
            spec = next(sub.stores[STORE] for sub in self.plan.subtopologies if STORE in sub.stores)
            check_changelog(self.broker, self.plan.changelogs[STORE], spec, content, exactly_once=once)

    def _stored(self) -> dict[bytes, bytes]:
        """Read the store from the log in the state of all partitions."""
        version = max(self.checkpoint.commits) + 1
        found: dict[bytes, bytes] = {}
        for partition in range(self.scene.partitions):
            state = self.checkpoint.state(partition, version)
            for task in self.layout.tasks:
                group = self.topology.groups[task]
                if (group,) not in state:
                    continue
                manifest, _ = decode_manifest(bytes(state[(group,)][0]))
                segments = SimpleNamespace(getValue=lambda key, g=group, s=state: s.get((g, *key)))
                copy = _RestoredCopy()
                statelog.StateLog(segments, task).restore(manifest, copy)  # type: ignore[arg-type]
                found.update(copy.stores.open(STORE).scan(None, None))
        return found


class _RestoredCopy:
    """A copy that is restored for the checks."""

    def __init__(self) -> None:
        self.stores = MemoryStores()

    def version(self) -> None:
        return None

    def why_empty(self) -> str:
        return "never opened"

    def parked(self, version: Any) -> None:
        return None

    def names(self) -> frozenset[str]:
        return self.stores.names()

    def apply(self, changes: Any, version: Any, dropped: Any = ()) -> None:
        self.stores.apply(changes, dropped)
