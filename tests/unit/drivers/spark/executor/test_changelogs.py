"""Changelog topics of unfinished records, when the results and the state of a micro-batch come from different attempts."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

import millstream as ms
from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import Call, Raised, Ticket, grouped
from millstream.core.asynchronous.committable_offset import Progress
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.asynchronous.result_buffer import ResultBuffer
from millstream.core.engine.asynchronous import backlog, in_flight
from millstream.core.engine.records.queue import MERGED, QueueId
from millstream.core.engine.records.readiness import InputFacts
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.calls import CallOrder, Calls
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import Manifest, decode_manifest
from millstream.core.topology.evolution import Lineage, parts_of
from millstream.core.topology.layout import lay_out
from millstream.core.topology.plan import Plan
from millstream.drivers.memory.memory_copy import MemoryCopy
from millstream.drivers.spark import wire
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.executor.changelogs import Changelogs, PublishedSnapshots
from millstream.drivers.spark.executor.committed_state import StoresBefore
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.drivers.spark.executor.host import TaskHost
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.executor.snapshots import TaskMemory
from millstream.drivers.spark.executor.statelog import StateLog
from millstream.drivers.spark.spec import TopologySpec
from unit.helpers import Row as Cells
from unit.helpers import records

from .test_host import OPENERS, Handle, Spark, row

KAFKA: dict[str, list[tuple[bytes, bytes | None]]] = defaultdict(list)
"""The internal topics of the application, each with one partition."""
READS: list[OffsetRange] = []
"""The ranges of internal topics that were read."""
WORKERS: list[FakeAsyncWorker] = []
"""The living async worker. Specs are pickled, so it is found here."""


class Reader:
    """Reads the internal topics."""

    def extent(self, topic: str, partition: int) -> OffsetRange:
        return OffsetRange(topic, partition, 0, len(KAFKA[topic]))

    def read(self, offsets: OffsetRange) -> Iterator[Records]:
        if entries := KAFKA[offsets.topic][offsets.start : offsets.end]:
            READS.append(offsets)
            yield Records([key for key, _ in entries], [value for _, value in entries], [0] * len(entries))


class FakeAsyncWorker:
    """An async worker whose time passes only when a test advances it."""

    def __init__(self, calls: Calls, dice: random.Random, failures: Mapping[str, int]) -> None:
        self.dispatcher = Dispatcher(calls, seed="app")
        self.results = ResultBuffer(self.dispatcher)
        self.dice, self.failures = dice, failures

    def ask(
        self,
        task: str,
        batch: int,
        now_ms: int,
        in_flight: Collection[Ticket] | None,
        calls: Iterable[Call] = (),
        *,
        options: Mapping[str, Calls] | None = None,
    ) -> Answered:
        answered = Answered()
        if in_flight is not None:
            lost = self.results.begin("call", grouped(in_flight).get("call", {}))
            answered = Answered(tuple(self.results.results()), tuple(lost))
        for call in calls:
            self.results.offer(call, now_ms)
        return answered

    def work(self, now_ms: int) -> None:
        self.dispatcher.expire(now_ms)
        for start in self.dispatcher.start(now_ms):
            self.dispatcher.end(start.number, [self._answer(call) for call in start.calls], now_ms)

    def _answer(self, call: Call) -> Any:
        value = call.args[0]
        return Raised(OSError("down")) if call.attempt <= self.failures[value] else f"<{value}>"


def living_worker(checkpoint: str) -> FakeAsyncWorker:
    return WORKERS[-1]


def calling(order: CallOrder) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(
        lambda value: value,
        name="call",
        order=order,
        retry=ms.Retry(initial=3, cap=10),
        max_in_flight=4,
        store=ms.stores.options("calls", changelog="kafka"),
    ).to("out")
    return builder.build()


def host_spec(plan: Plan, tasks: int, directory: Path) -> HostSpec:
    layout = lay_out(plan, {"in": tasks})
    lineage = Lineage(parts_of(plan, layout, {}))
    keys, policies = grouping_keys(layout.tasks), ms.ErrorPolicies()
    topology = TopologySpec(plan, layout, keys, policies, {}, lineage)
    copies = CopiesSpec(str(directory), OPENERS, dict.fromkeys(plan.changelogs, "memory"), 64 << 20)
    return HostSpec(topology, copies, changelogs=Reader())


class Application:
    """An application with one task, whose micro-batches are delivered by one attempt and committed by another."""

    def __init__(self, directory: Path, order: CallOrder, rows: list[Cells], dice: random.Random) -> None:
        KAFKA.clear()
        self.plan = calling(order).plan("app")
        self.spec = replace(
            host_spec(self.plan, 1, directory), async_workers=living_worker, repeats_sends=False
        )
        self.calls = next(
            node.calls for node in self.plan.subtopologies[0].nodes.values() if node.name == "call"
        )
        self.dice, self.rows = dice, rows
        self.failures = Counter({cells[1]: dice.choice([0, 0, 1, 2]) for cells in rows})
        self.head: Any = None
        self.log: dict[Any, Any] = {}
        self.position = self.number = self.now_ms = self.planned_ms = 0
        self.delivered, self.committed = -1, 0
        self.out: list[bytes | None] = []
        self.initialization: Initialization | None = Initialization()
        self.new_worker()

    @property
    def unfinished(self) -> bool:
        return self.committed < len(self.rows) or self.initialization is not None

    def new_worker(self) -> None:
        WORKERS[:] = [FakeAsyncWorker(self.calls, self.dice, self.failures)]

    @property
    def expected(self) -> Counter[bytes]:
        """The results of all records, each once."""
        return Counter(f"<{value}>".encode() for _, value, _ in self.rows)

    def micro_batch(self) -> None:
        """Plan a micro-batch and run it; all attempts but the last are lost, some of them after their delivery."""
        attempts = self.dice.choice([1, 1, 2, 3])
        self.planned_ms = self.now_ms
        reads = 0 if self.initialization else self.dice.randrange(8)
        end = min(self.position + reads, len(self.rows))
        for attempt in range(1, attempts + 1):
            handle = self._attempt(end, delivers=attempt == attempts or self.dice.random() < 0.5)
            if attempt < attempts and self.dice.random() < 0.3:
                self.new_worker()
            self.pass_time()
        self.head, self.log = handle.head.value, handle.log.content
        self.position, self.number = end, self.number + 1
        self.initialization = Initialization() if attempts > 1 else None
        self.pass_time()

    def _attempt(self, end: int, *, delivers: bool) -> Handle:
        host, handle = TaskHost(self.spec), Handle(self.head, self.log)
        host.init(handle)
        rows = list(host.handleInputRows(None, iter(self._rows(end)), None))
        host.close()
        if delivers and self.delivered < self.number:
            self.delivered = self.number
            for each in rows:
                if each.kind == wire.SEND:
                    self._send(each.topic, wire.decode(each.payload))
                else:
                    offsets = TaskReport.decode(each.payload).offsets
                    self.committed = offsets.get(TopicPartition("in", 0), self.committed)
        return handle

    def _rows(self, end: int) -> list[Row]:
        cells = self.rows[self.position : end]
        rows = [row(wire.RECORDS, *cells, start=self.position)]
        if self.initialization is not None:
            rows.append(row(wire.TICK))
            rows[-1] = Row(**{**rows[-1].asDict(), "payload": self.initialization.encode()})
        batch = {"batch": f"5f3a:{self.number}:run", "now_ms": self.planned_ms}
        return [Row(**{**each.asDict(), **batch}) for each in rows]

    def _send(self, topic: str, records: Records) -> None:
        if topic == "out":
            self.out += records.values
        else:
            KAFKA[topic] += zip(records.keys, records.values, strict=True)

    def pass_time(self) -> None:
        for _ in range(self.dice.randrange(4)):
            self.now_ms += 1
            WORKERS[-1].work(self.now_ms)

    def lose_checkpoint(self) -> None:
        """Start with a new checkpoint and a new async worker; delivered records are in Kafka."""
        self.new_worker()
        self.head, self.log, self.position = None, {}, self.committed
        self.initialization = Initialization(rebuild=True)

    def stored(self, directory: Path) -> dict[str, dict[bytes, bytes]]:
        """Return the content of the stores in the state."""
        manifest, _ = decode_manifest(self.head[0])
        copy = MemoryCopy(str(directory))
        StateLog(Handle(None, self.log).log, TaskId(0, 0)).restore(manifest, copy)
        return {store: dict(copy.open_view().open(store).scan(None, None)) for store in self.plan.changelogs}

    def published(self) -> dict[str, dict[bytes, bytes]]:
        """Return the content of the changelog topics."""
        return {
            store: {key: value for key, value in dict(KAFKA[topic]).items() if value is not None}
            for store, topic in self.plan.changelogs.items()
        }


@pytest.fixture
def backlogs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that a few records fill the spill queue and the delay queue."""
    monkeypatch.setattr(backlog, "_LONG_KEY", 3)
    monkeypatch.setattr(backlog, "_BLOCKED_KEY", 2)
    monkeypatch.setattr(in_flight, "_AHEAD_MS", 2)


@pytest.mark.usefixtures("backlogs")
@pytest.mark.parametrize("order", ["key", "completion"])
def test_a_changelog_equals_the_committed_state_although_another_attempt_was_delivered(
    order: CallOrder, tmp_path: Path
) -> None:
    differed = 0
    for seed, app in applications(tmp_path, order, 8):
        while app.unfinished:
            app.micro_batch()
            same = app.published() == app.stored(tmp_path / "look")
            assert same or app.initialization is not None, f"seed {seed}, micro-batch {app.number}"
            differed += not same
        assert Counter(app.out) == app.expected
        assert not any(app.published().values())
    assert differed > 8


@pytest.mark.usefixtures("backlogs")
@pytest.mark.parametrize("order", ["key", "completion"])
def test_a_task_without_its_checkpoint_continues_from_what_was_delivered(
    order: CallOrder, tmp_path: Path
) -> None:
    lost = 0
    for seed, app in applications(tmp_path, order, 12):
        while app.unfinished:
            app.micro_batch()
            if app.dice.random() < 0.2:
                lost += len(app.out) < len(app.rows)
                app.lose_checkpoint()
        assert Counter(app.out) == app.expected, f"seed {seed}"
    assert lost > 12


def test_the_tasks_that_one_process_rebuilds_read_the_commits_topic_once(tmp_path: Path) -> None:
    KAFKA.clear()
    READS.clear()
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store=ms.stores.options("counts", changelog="kafka"))
    plan = builder.build().plan("app")
    KAFKA["app-commits"] = [(b"task counts %d" % task, b"{}") for task in range(3)]
    spec = host_spec(plan, 3, tmp_path)
    for initialization in (Initialization(rebuild=True), None, Initialization(rebuild=True)):
        for task in range(3):
            host = TaskHost(spec)
            host.init(Handle(None, {}))
            tick = b"" if initialization is None else initialization.encode()
            rows = [Row(**{**row(wire.TICK).asDict(), "task": f"0_{task}", "payload": tick})]
            list(host.handleInputRows(None, iter(rows), None))
    ranges = [(offsets.topic, offsets.start, offsets.end) for offsets in READS]
    assert ranges == [("app-commits", 0, 3)] * 2, "they are forgotten once the tasks are rebuilt"


def test_a_versioned_store_deletes_expired_versions_from_its_changelog_topic(tmp_path: Path) -> None:
    """Each version has a key of its own in the topic, so compaction alone would keep all versions forever."""
    builder = ms.StreamsBuilder()
    prices = ms.stores.options("prices", history_retention=60_000, changelog="kafka")
    builder.table("in", store=prices)
    spark, topology = Spark(tmp_path), builder.build()
    compacted: dict[bytes, bytes] = {}
    for number in range(30):
        cells = ("a", f"v{number}", number * 30_000)
        for sent in spark.batch(topology, [row(wire.RECORDS, cells, start=number)]):
            if sent.kind == wire.SEND and sent.topic == "app-prices-changelog":
                records = wire.decode(sent.payload)
                for key, value in zip(records.keys, records.values):
                    compacted.pop(key, None)
                    if value is not None:
                        compacted[key] = value
    versions = {value[value.index(b"v") :].decode() for value in compacted.values()}
    assert versions == {f"v{number}" for number in range(25, 30)}, "like the store"


def test_the_content_of_a_store_with_large_values_is_published_in_small_batches() -> None:
    builder = ms.StreamsBuilder()
    builder.table("in", store=ms.stores.options("files", changelog="kafka"))
    plan = builder.build().plan("app")
    stores = MemoryStores()
    stores.apply({"files": [(b"%d" % number, bytes(1 << 20)) for number in range(20)]})
    changelogs = Changelogs(plan, plan.subtopologies[0], TaskId(0, 0))
    parts = [records for _, records in changelogs.publish_content(["files"], ["files"], stores, 0)]
    assert max(records.byte_count() for records in parts) < 10 << 20
    assert [key for records in parts for key in records.keys] == sorted(
        b"%d" % number for number in range(20)
    )


class TestPublishedSnapshot:
    """The snapshot of a task that waits for an input and has buffered records of a topic, of a lane, and of merged lanes."""

    @pytest.fixture
    def changelogs(self) -> Changelogs:
        KAFKA.clear()
        builder = ms.StreamsBuilder()
        table = builder.table("prices", store=ms.stores.options("prices", changelog="kafka"))
        builder.stream("orders").join(table, lambda order, price: f"{order}{price}").to("out")
        plan = builder.build().plan("app")
        return Changelogs(plan, plan.subtopologies[0], TaskId(0, 0))

    def waiting(self, changelogs: Changelogs, count: int) -> Snapshot:
        """Return the snapshot of a task with buffered records: ``count`` from a topic, and two from each lane."""
        task = Task(
            changelogs.sub, TaskId(0, 0), application_id="app", stores=MemoryStores(), max_task_idle_ms=60_000
        )
        task.init(0)
        orders, prices = TopicPartition("orders", 0), TopicPartition("prices", 0)
        task.inform(InputFacts((orders, prices)))
        for lane, size in {"": count, "lane": 2, MERGED: 2}.items():
            task.feed(orders, records([("k", f"value {n}", n) for n in range(size)], 0), size, lane=lane)
        assert task.step(0).metrics.processed == 0
        return task.snapshot()

    def publish(self, changelogs: Changelogs, snapshot: Snapshot) -> int:
        """Publish the memory of a task and return its size, bytes."""
        memory = TaskMemory(snapshot, {"prices": "x"}, {"prices": "lmdb"}, ("prices",))
        [(topic, sent)] = changelogs.publish({}, memory, 0)
        KAFKA[topic] += zip(sent.keys, sent.values, strict=True)  # type: ignore[arg-type]  # it has a key
        return sent.byte_count()

    def test_does_not_grow_with_the_records_that_a_rebuild_reads_again(self, changelogs: Changelogs) -> None:
        few, many = (self.publish(changelogs, self.waiting(changelogs, count)) for count in (10, 10_000))
        assert many == few

    def test_contains_everything_that_a_rebuild_needs(self, changelogs: Changelogs) -> None:
        partition = TopicPartition("orders", 0)
        snapshot = replace(
            self.waiting(changelogs, 10),
            partition_times={QueueId(partition): 5, QueueId(partition, MERGED): 5},
            progress={partition: Progress(3, ((1, 1),))},
        )
        self.publish(changelogs, snapshot)
        published = PublishedSnapshots(Reader(), "app-commits")
        loaded = StoresBefore(None, Manifest(), changelogs.memory(published, {}), {}).snapshot
        assert loaded == snapshot.without_committed()
        assert {queue.lane for queue in loaded.buffered} == {"lane", MERGED}
        assert loaded.taken == {QueueId(partition): 3, QueueId(partition, MERGED): 2}


def applications(directory: Path, order: CallOrder, seeds: int) -> Iterator[tuple[int, Application]]:
    """Yield an application with 40 records for each seed."""
    for seed in range(seeds):
        dice = random.Random(seed)
        keys = [dice.choice(["hot", "hot", "warm", "cold"]) for _ in range(40)]
        rows = [(key, f"{key}:{number}", number) for number, key in enumerate(keys)]
        yield seed, Application(directory / str(seed), order, rows, dice)
