"""The sink tells the application whether an earlier attempt at a micro-batch may have sent other records."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import BatchId
from millstream.core.runtime.task_report import CommittedBatch, TaskReport
from millstream.drivers.spark import sink, wire
from millstream.drivers.spark.sink import KafkaStreamWriter, SinkSpec


class Publisher:
    """An exactly-once publisher: only the first delivering attempt at a micro-batch sends records."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.delivered: set[int] = set()

    def delivery(self, partition: int) -> Publisher:
        return self

    def begin(self, batch: BatchId) -> bool:
        self.number = batch.number
        return batch.number not in self.delivered

    def publish(self, topic: str, records: Records) -> None:
        self.sent.append(topic)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.delivered.add(self.number)


class Application:
    """An application that records the committed micro-batches."""

    def __init__(self) -> None:
        self.batches: list[CommittedBatch] = []

    def ask(self, question: str, data: Any) -> None:
        assert question == "batch"
        self.batches.append(data)


class FakeTaskContext:
    def __init__(self, attempt: int) -> None:
        self.attempt = attempt

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return self.attempt


def output(batch: int) -> pa.RecordBatch:
    """Return the output of a task: a record to send, and its report."""
    report = TaskReport("0_0", {TopicPartition("in", 0): 1}).encode()
    records = wire.encode(Records([b"k"], [b"v"], [0]))
    columns = ([wire.SEND, wire.REPORT], ["out", ""], [f"c:{batch}:run"] * 2, [records, report])
    return pa.RecordBatch.from_arrays(
        [pa.array(cells) for cells in columns], ["kind", "topic", "batch", "payload"]
    )


@pytest.mark.parametrize("exactly_once", [True, False])
def test_an_attempt_after_one_that_may_have_sent_records_is_reported_as_repeated(
    exactly_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, application = Publisher(), Application()
    arguments: Any = (publisher if exactly_once else None, frozenset(["in"]), application)
    spec = SinkSpec(*arguments)
    monkeypatch.setattr(sink, "in_executor", lambda option: spec)
    monkeypatch.setattr(sink, "in_driver", lambda option: application)
    writer = KafkaStreamWriter("")

    def write(batch: int, attempt: int) -> Any:
        monkeypatch.setattr(sink.TaskContext, "get", lambda: FakeTaskContext(attempt))
        written = writer.write(iter([output(batch)]))
        return pickle.loads(pickle.dumps(written))

    def repeated(*written: Any) -> bool:
        writer.commit(list(written), 0)
        return bool(application.batches[-1].repeated)

    assert not repeated(write(1, attempt=0))
    again = write(1, attempt=1)
    assert repeated(write(2, attempt=0), again)
    assert publisher.sent == (["out", "out"] if exactly_once else [])
    if exactly_once:
        assert not repeated(write(3, attempt=1)), "the first attempt has delivered nothing"
