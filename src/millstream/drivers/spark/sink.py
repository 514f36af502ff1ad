"""The sink: sends the output of tasks exactly once, and reports to the application before Spark commits the micro-batch.

The transaction of a Spark partition is committed before ``write`` returns. Spark commits the micro-batch afterwards.
``millstream.drivers.kafka.transactions`` describes repeated micro-batches. Under at-least-once delivery, the tasks send their records
themselves, and the sink receives only reports.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.core.model.errors import DeliveryAbortedError
from millstream.core.model.ids import TopicPartition
from millstream.core.ports import Delivery, Publisher
from millstream.core.runtime.task_report import CommittedBatch, TaskReport, offsets_of
from millstream.drivers.spark import wire
from millstream.drivers.spark.control import ControlAddress
from millstream.drivers.spark.crossing import crossing, paused_gc
from millstream.drivers.spark.source_options import in_driver, in_executor, option_of

log = logging.getLogger("millstream.sink")

FORMAT = "millstream_sink"
_ATTEMPTS = 5


@dataclass(frozen=True)
class SinkSpec:
    """The parameters of the sink.

    Attributes:
        publisher: Sends exactly once. None if the tasks send.
        topics: Topics read from the broker. Only their offsets are committed.
    """

    publisher: Publisher | None
    topics: frozenset[str]
    control: ControlAddress

    def to_option(self) -> str:
        """Return the spec as an option. The driver's part is the address of the application."""
        return option_of(self.control, self)


class KafkaSink(DataSource):
    """The data source ``millstream_sink``: sends SEND rows and passes REPORT rows to the application."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return KafkaStreamWriter(self.options["spec"])


@dataclass
class Written(WriterCommitMessage):
    """The message from a Spark task of the sink to the commit.

    Attributes:
        repeated: Whether an earlier attempt has sent results: exactly once, all of them; at least once, possibly some.
    """

    reports: list[bytes]
    repeated: bool


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes in the executors and commits in the Spark driver. Each side unpickles its part of the option."""

    def __init__(self, option: str) -> None:
        self._option = option

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the records of a Spark task in a transaction and commit it, unless the tasks have already sent them."""
        with crossing(), paused_gc():
            context = TaskContext.get()
            assert context is not None
            spec: SinkSpec = in_executor(self._option)
            rows = _OutputRows(iterator)
            if spec.publisher is None:
                rows.finish()
                return Written(rows.reports, context.attemptNumber() > 0)
            delivery = spec.publisher.delivery(context.partitionId())
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    repeated = not _deliver(spec, delivery, rows)
                    break
                except DeliveryAbortedError as error:
                    if attempt == _ATTEMPTS:
                        raise
                    log.warning("retrying the send: %s", error)
            return Written(rows.reports, repeated)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        with crossing():
            written = [message for message in messages if isinstance(message, Written)]
            reports = [report for message in written for report in message.reports]
            repeated = any(message.repeated for message in written)
            control: ControlAddress = in_driver(self._option)
            control.ask("batch", CommittedBatch(batchId, reports, repeated))


def _deliver(spec: SinkSpec, delivery: Delivery, rows: _OutputRows) -> bool:
    """Send the rows. Return False if an earlier attempt has sent them."""
    batch = rows.batch
    if batch is None:
        return True
    try:
        if not delivery.begin(batch):
            rows.finish()
            return False
        sent = False
        for topic, payload in rows:
            delivery.publish(topic, wire.decode(payload))
            sent = True
        offsets = rows.offsets(spec.topics)
        if sent or offsets:
            delivery.commit(offsets)
        return True
    except DeliveryAbortedError:
        raise
    except BaseException:
        delivery.abort()
        raise


class _OutputRows:
    """The output rows of a Spark task. They are read lazily and kept for a repeated send."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.reports: list[bytes] = []
        self._kept: list[tuple[str, Any]] = []
        cells = _cells(batches)
        first = next(cells, None)
        self.batch = None if first is None else wire.batch_of(first[2])
        self._rest = cells if first is None else chain([first], cells)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the topics and payloads to send, beginning with those already read. Collect the reports."""
        yield from list(self._kept)
        for kind, topic, _, payload in self._rest:
            if kind == wire.REPORT:
                self.reports.append(payload.as_py())
                continue
            row = (topic, payload.as_buffer())
            self._kept.append(row)
            yield row

    def finish(self) -> None:
        for _ in self:
            pass

    def offsets(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        """Return the committable offsets of topics. Call this method after all rows have been read."""
        offsets = offsets_of(map(TaskReport.decode, self.reports))
        return {partition: offset for partition, offset in offsets.items() if partition.topic in topics}


def _cells(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, str, str, Any]]:
    for rows in batches:
        columns = (rows.column(number).to_pylist() for number in range(3))
        yield from zip(*columns, rows.column(3))
