"""Kafka topics as rows, for users who want a streaming DataFrame. Has the columns of Spark's Kafka source, without its jar.

An offset is JSON: ``{topic: {partition: offset}}``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.core.ports import Fetcher, OffsetRange, TopicReader
from millstream.core.runtime.admission import admit, packed, ranges
from millstream.drivers.spark import wire
from millstream.drivers.spark.crossing import crossing, paused_gc
from millstream.drivers.spark.source_options import in_driver, in_executor, option_of

FORMAT = "millstream_rows"
_IDLE_POLL_S = 0.04

ROWS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", wire.HEADERS),
    ]
)
_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", wire.HEADERS_ARROW),
    ]
)


@dataclass(frozen=True)
class RowSourceSpec:
    """What the source needs to know.

    Attributes:
        readers: Number of Spark tasks that can read concurrently.
        offset_reset: Where to begin: "earliest" or "latest".
    """

    partitions: Mapping[str, int]
    broker: TopicReader
    fetcher: Fetcher
    max_records: int
    readers: int
    offset_reset: str

    def to_option(self) -> str:
        return option_of(self, self.fetcher)


class KafkaRowSource(DataSource):
    """The data source ``millstream_rows``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return KafkaRowReader(self.options["spec"])


@dataclass
class RowRead(InputPartition):
    """The ranges that one Spark task reads."""

    ranges: list[OffsetRange]


class KafkaRowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the Spark driver and reads in the executors. Its pickle is the text of the option."""

    def __init__(self, option: str) -> None:
        self._option = option
        self._final: Offsets | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (KafkaRowReader, (self._option,))

    @cached_property
    def _spec(self) -> RowSourceSpec:
        spec: RowSourceSpec = in_driver(self._option)
        return spec

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the first or last offsets, depending on ``offset_reset``."""
        with crossing():
            spec = self._spec
            at_end = spec.offset_reset == "latest"
            return positions_to_json(
                (spec.broker.end_offsets if at_end else spec.broker.begin_offsets)(spec.partitions)
            )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with crossing():
            self._final = self._spec.broker.end_offsets(self._spec.partitions)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with crossing():
            ends = self._final or self._spec.broker.end_offsets(self._spec.partitions)
            planned = positions_to_json(admit(positions_from_json(start), ends, self._spec.max_records))
            if planned == start and self._final is None:
                time.sleep(_IDLE_POLL_S)  # Spark asks again at once; this sleep is the poll interval
            return planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [
            RowRead(part)
            for part in packed(
                ranges(positions_from_json(start), positions_from_json(end)),
                self._spec.readers,
                whole=self._spec.partitions,  # the user's code after it may call functions for each record
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRead)
        with crossing(), paused_gc():
            fetcher: Fetcher = in_executor(self._option)
            for planned, fetched in fetcher.fetch_all(partition.ranges):
                for records in fetched:
                    yield _rows(planned, wire.to_arrow(records))


def _rows(planned: OffsetRange, batch: pa.RecordBatch) -> pa.RecordBatch:
    count = batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            batch.column("key"),
            batch.column("value"),
            pa.array([planned.topic] * count, pa.string()),
            pa.array([planned.partition] * count, pa.int32()),
            batch.column("offset"),
            *wire.times_and_headers(batch),
        ],
        schema=_SCHEMA,
    )
