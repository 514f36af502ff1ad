"""A start of the application: the work of Spark's driver, with the product's planner, readers, task host and sink."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.ports import BatchId
from millstream.core.runtime.batch_plan import BatchPlan, batch_id
from millstream.drivers.kafka.marks import Mark, mark_of
from millstream.drivers.spark.driver.placement import spark_hash
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.drivers.spark.executor.host import TaskHost
from millstream.drivers.spark.sink import KafkaStreamWriter, SinkSpec
from millstream.drivers.spark.source import KafkaStreamReader
from millstream.edge.application.application_run import Resources
from millstream.edge.application.running_application import RunningApplication
from millstream.edge.broker.group_offsets import GroupOffsets
from millstream.edge.control.flow_control import FlowControl, FlowLimits
from simulation.spark import ChunkRow, Handle, StateStore, TaskSet, occupied

if TYPE_CHECKING:
    from simulation.world import World

_IDLE_POLLS = 3


class Query:
    """One start of the application: its driver runs until it has nothing to do, fails or dies."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scheduler = world.scheduler
        self._application: Any = None
        self._reader = KafkaStreamReader("")
        self._run = world.token()
        self._writer = KafkaStreamWriter(
            SinkSpec(world.publisher(self._run), world.plan.committed_by_transactions, self)
        )  # type: ignore[arg-type]
        self.source = world.source(self, self._run)

    def ask(self, question: str, data: Any) -> Any:
        """Answer like the application. Takes the place of a ``ControlAddress``."""
        self._scheduler.step(f"asks the application: {question}")
        return self._application._requests.answer(question, data)

    def run(self) -> None:
        """Run micro-batches until there is nothing to do."""
        world = self._world
        self._application = _application(world)
        if world.scene.exactly_once:
            publisher = world.publisher(self._run)
            assert publisher is not None
            publisher.end_open(world.scene.partitions)
            publisher.claim(self._newest(), self._marks(), world.scene.partitions)
        log = world.checkpoint
        number = max(log.offsets, default=-1)
        if number >= 0 and number not in log.commits:
            self._batch(number)
        idle = 0
        while idle < _IDLE_POLLS:
            number = max(log.offsets, default=-1)
            start = self._start_of(number + 1)
            end = self._reader.latestOffset(start, None)  # type: ignore[arg-type]
            if end == start:
                idle = idle + 1 if world.fed and self._caught_up() else 0
                continue
            idle = 0
            self._scheduler.step(f"writes the offsets of batch {number + 1}")
            log.offsets[number + 1] = json.dumps(end)
            world.watch.planned = BatchPlan.from_json(end).positions
            self._batch(number + 1)

    def _newest(self) -> BatchId:
        offsets = self._world.checkpoint.offsets
        return batch_id(json.loads(offsets[max(offsets)])) if offsets else BatchId(self.source.checkpoint, -1)

    def _marks(self) -> dict[int, Mark]:
        known = self._world.broker.groups.get(self._world.plan.commits_topic, {})
        found = [
            ClientPartition(*partition, offset, metadata) for partition, (offset, metadata) in known.items()
        ]
        return {position.partition: mark for position in found if (mark := mark_of(position))}

    def _caught_up(self) -> bool:
        """Return whether no more records can arrive after the last poll."""
        broker = self._world.broker
        open_ids = [
            transaction for transaction in broker.ids.values() if transaction.open or transaction.deciding
        ]
        return not open_ids and broker.available

    def _start_of(self, number: int) -> dict[str, Any]:
        if number == 0:
            return self._reader.initialOffset()
        start: dict[str, Any] = json.loads(self._world.checkpoint.offsets[number - 1])
        return start

    def _batch(self, number: int) -> None:
        world, log = self._world, self._world.checkpoint
        start, end = self._start_of(number), json.loads(log.offsets[number])
        reads = self._reader.partitions(start, end)
        read = TaskSet(
            lambda n: world.begin_attempt("read", n, lambda: self._read(reads[n])),
            len(reads),
            self._scheduler,
        )
        rows = [row for part in read.run() for row in part]
        partitions: list[list[ChunkRow]] = [[] for _ in range(world.scene.partitions)]
        for row in rows:
            partitions[spark_hash(row.group) % len(partitions)].append(row)
        write = TaskSet(
            lambda n: world.begin_attempt("task", n, lambda: self._write(n, partitions[n], number)),
            len(partitions),
            self._scheduler,
        )
        messages = write.run()
        self._scheduler.step(f"commits the sink of batch {number}")
        self._writer.commit(messages, number)
        self._scheduler.step(f"commits batch {number}")
        log.commits.add(number)

    def _read(self, planned: Any) -> list[ChunkRow]:
        self._scheduler.step("begins to read")
        return [ChunkRow(**row) for batch in self._reader.read(planned) for row in batch.to_pylist()]

    def _write(self, partition: int, rows: list[ChunkRow], version: int) -> Any:
        """Run the tasks of a partition, and send their output."""
        world = self._world
        executor, process = world.placed[world.acting][1].executor, world.acting.process
        self._scheduler.step("waits for its state", occupied(executor, partition))
        executor.busy[partition] = process
        try:
            store = StateStore(world.checkpoint, executor, partition, version)
            outputs = self._outputs(store, rows)
            try:
                return self._writer.write(outputs)
            finally:
                outputs.close()
        except BaseException:
            if process.alive:
                executor.loaded.pop(partition, None)
            raise
        finally:
            if executor.busy.get(partition) is process:
                del executor.busy[partition]

    def _outputs(self, store: StateStore, rows: list[ChunkRow]) -> Iterator[pa.RecordBatch]:
        groups: dict[int, list[ChunkRow]] = {}
        for row in self._scheduler.random.sample(rows, len(rows)):
            groups.setdefault(row.group, []).append(row)
        for group, group_rows in groups.items():
            self._scheduler.step("runs a task")
            host = TaskHost.__new__(TaskHost)
            host._pickled, host._logs = b"", SimpleNamespace(apply=lambda: None)  # type: ignore[assignment]
            host._snapshots = []
            host.init(Handle(store, group, self._scheduler))  # type: ignore[arg-type]
            for out in host.handleInputRows(None, iter(group_rows), None):  # type: ignore[arg-type]
                yield _output(out)
            host.close()
        self._scheduler.step("commits its state")
        store.commit()


_OUTPUT = pa.schema(
    [("kind", pa.int8()), ("topic", pa.string()), ("batch", pa.string()), ("payload", pa.binary())]
)


def _output(row: Any) -> pa.RecordBatch:
    cells = (row.kind, row.topic, row.batch, row.payload)
    return pa.RecordBatch.from_arrays(
        [pa.array([cell], kind.type) for cell, kind in zip(cells, _OUTPUT, strict=True)], schema=_OUTPUT
    )


def _application(world: World) -> RunningApplication:
    resources = Resources(
        GroupOffsets(world.reader),
        SimpleNamespace(held=True),  # type: ignore[arg-type]
        FlowControl(Path(), FlowLimits()),
        SimpleNamespace(delete_records=lambda before: True),
        lambda: None,
        copies=lambda: CopiesSpec("", {}, {}, 0),
        check_query_key=lambda session: None,
        last_records=lambda topic, last, serdes: [],
        transactional=world.scene.exactly_once,
    )
    application = RunningApplication(world.plan.application_id, resources)
    # Of what a checkpoint continues, the simulation uses only the plan.
    application._run.continues = SimpleNamespace(plan=world.plan), {}  # type: ignore[assignment]
    return application
