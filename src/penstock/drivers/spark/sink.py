"""The sink: sends what the tasks put out, and tells the application before Spark commits the batch.

At least once: the records of a batch are acknowledged by the broker before ``write`` returns, and Spark commits the batch
after that. A batch that is run again sends its records again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.core.ports import Publisher
from penstock.drivers.spark import wire
from penstock.drivers.spark.control import ControlAddress

FORMAT = "penstock_sink"


@dataclass(frozen=True)
class SinkSpec:
    """What the sink needs to know: how to send, and where the application listens."""

    publisher: Publisher
    control: ControlAddress

    def to_option(self) -> str:
        """Give the spec as the string that a data source's option can carry."""
        return base64.b64encode(cloudpickle.dumps(self)).decode()


class KafkaSink(DataSource):
    """The data source ``penstock_sink``: sends SEND rows, reports REPORT rows."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Make the writer."""
        return KafkaStreamWriter(cloudpickle.loads(base64.b64decode(self.options["spec"])))


@dataclass
class Written(WriterCommitMessage):
    """What one Spark task of the sink hands to the commit: the reports, as they came."""

    reports: list[bytes]


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes in the executors, commits in the Spark driver."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the records of a Spark task; return when the broker has acknowledged them."""
        with wire.crossing(), wire.paused_gc():
            reports: list[bytes] = []
            publisher = self._spec.publisher
            for rows in iterator:
                for kind, topic, payload in _cells(rows):
                    if kind == wire.REPORT:
                        reports.append(payload.as_py())
                    else:
                        publisher.publish(topic, wire.decode(payload.as_buffer()))
            publisher.flush()
            return Written(reports)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Hand the reports of a batch to the application."""
        with wire.crossing():
            reports = [
                report for message in messages if isinstance(message, Written) for report in message.reports
            ]
            self._spec.control.ask("batch", {"batch": batchId, "reports": reports})

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what was sent stays sent, and the batch will be run again."""


def _cells(rows: pa.RecordBatch) -> Iterator[tuple[int, str, Any]]:
    return zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), rows.column(2))
