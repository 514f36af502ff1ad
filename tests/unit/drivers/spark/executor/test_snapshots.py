from __future__ import annotations

import json

import millstream as ms
from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.records.readiness import FOREVER, Waiting
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.model.record import Records
from millstream.core.topology.routing import Route, Routing
from millstream.drivers.spark.executor.snapshots import TaskMemory, snapshot_from_json, snapshot_to_json
from unit.helpers import Host, processing, processor_topology, values

IN, LANE = QueueId(ms.TopicPartition("in", 1)), QueueId(ms.TopicPartition("in", 1), "x-0")


def round_trip(snapshot: Snapshot) -> Snapshot:
    read = snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot))))
    assert read is not None
    return read


def test_a_snapshot_is_read_from_json_as_it_was_written() -> None:
    snapshot = Snapshot(
        9,
        {IN: 9, LANE: 4},
        ({"node": "n", "ordinal": 0, "method": None, "kind": "wall_clock_time", "interval_ms": 5, "due_ms": 10, "cancelled": False},),
        {IN: Records([b"\xff", None], [None, b"v"], [1, 2], [7, 9], [(("h", None),), ()]), LANE: Records([b"k"], [b"v"], [3], [0])},
        {IN: 12, LANE: 1},
        {"windows": {"time": 7, "slices": [[0, 60000]]}},
    )  # fmt: skip
    assert round_trip(snapshot) == snapshot


def test_the_snapshot_of_a_waiting_task_is_read_from_json_as_it_was_written() -> None:
    partition = ms.TopicPartition("in", 1)
    waits = Snapshot(deadlines={partition: FOREVER}, waiting=Waiting(partition, "idle", 7))
    assert round_trip(waits) == waits
    assert not {"deadlines", "waiting"} & set(snapshot_to_json(Snapshot()))


def test_an_older_snapshot_without_facts_of_stores_is_read() -> None:
    old = snapshot_to_json(Snapshot(9))
    del old["stores"]
    assert snapshot_from_json(old) == Snapshot(9)


def test_a_missing_snapshot_is_read_as_none() -> None:
    assert snapshot_from_json(None) is None
    assert round_trip(Snapshot()) == Snapshot()


def test_a_task_continues_from_its_snapshot() -> None:
    def init(context: ms.ProcessorContext) -> None:
        context.schedule(10, ms.wall_clock, lambda now: context.forward(ms.Record(None, f"tick {now}", 0)))

    host = Host(processor_topology(processing(lambda context, record: context.forward(record), init=init)))
    host.feed("in", [("a", "1", 5, (("h", b"x"),)), ("b", "2", 6), ("c", "3", 7)])
    assert values(host.step(budget=1)) == ["1"]
    host.restart(round_trip)
    assert values(host.step(now_ms=10, budget=1)) == ["2", "tick 10"]
    host.restart(round_trip)
    outcome = host.step(now_ms=19)
    assert (values(outcome), outcome.wake_at_ms, outcome.stream_time_ms) == (["3"], 20, 7)


def test_task_memory_is_read_as_it_was_written_and_with_renamed_stores() -> None:
    routing = Routing({"a": Route((0, 1), "producer")}, {"s": ("a",)})
    memory = TaskMemory(Snapshot(9), {"s": "x"}, {"s": "lmdb"}, ("s",), {"s": 3}, routing)
    data = json.loads(json.dumps(memory.to_json()))
    assert list(data) == ["task", "stores", "engines", "published", "unfinished", "routing"]
    assert TaskMemory.from_json(data) == memory
    renamed = TaskMemory.from_json(data, {"s": "t"})
    assert (renamed.stores, renamed.engines, renamed.unfinished) == ({"t": "x"}, {"t": "lmdb"}, {"t": 3})
    assert TaskMemory.from_json({}) == TaskMemory()
    assert (memory.without_operator(["s"]), memory.without_operator([])) == ({}, {"s": 3})
