"""Transform: runs a topology over streaming DataFrames that the user reads and writes.

The same task host runs between two ``mapInArrow`` steps. The first turns rows with the columns of Spark's Kafka source into chunk rows.
The second turns output chunk rows into rows with the columns of Spark's Kafka sink.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.core.model.errors import SparkRuntimeError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import WallClock
from millstream.drivers.spark import wire
from millstream.drivers.spark.clock import host_clock
from millstream.drivers.spark.crossing import crossing, paused_gc
from millstream.drivers.spark.driver.modules import send_modules
from millstream.drivers.spark.driver.program_pickle import pickled_program
from millstream.drivers.spark.driver.query import hosted
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.source import MapStage
from millstream.drivers.spark.spec import PlannedRead, TopologySpec

RESULT_ROWS = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", wire.HEADERS),
    ]
)
"""The columns of Spark's Kafka sink, and the timestamp."""

_NEEDED = ("key", "value", "partition", "offset", "timestamp")


def transform(
    inputs: Mapping[str, DataFrame], host: HostSpec, py_modules: Collection[str] | None = None
) -> DataFrame:
    """Run a topology over streaming DataFrames.

    Returns:
        A streaming DataFrame with the columns of :data:`RESULT_ROWS`.
    """
    program = pickled_program(host, host.topology)
    send_modules(next(iter(inputs.values())).sparkSession, program, py_modules)
    chunks = [_chunks(topic, frame, host.topology) for topic, frame in inputs.items()]
    rows = hosted(reduce(DataFrame.unionByName, chunks), host)
    return rows.mapInArrow(_result_rows, RESULT_ROWS)


def _chunks(topic: str, frame: DataFrame, topology: TopologySpec) -> DataFrame:
    missing = [column for column in _NEEDED if column not in frame.columns]
    if missing:
        raise SparkRuntimeError(
            f"the DataFrame for topic {topic!r} has no column {', '.join(missing)}; it needs the columns of Spark's Kafka "
            f"source: key, value, partition, offset, timestamp, and headers if there are any (it has: {', '.join(frame.columns)})"
        )
    columns = [frame[column] for column in _NEEDED]
    if "headers" in frame.columns:
        columns.append(frame["headers"])
    return frame.select(*columns).mapInArrow(_Chunker(topic, cloudpickle.dumps(topology)), wire.CHUNK_ROWS)


@dataclass(frozen=True)
class _Chunker:
    """Turns Kafka rows into chunk rows in the executors."""

    topic: str
    pickled: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with crossing(), paused_gc():
            topology: TopologySpec = cloudpickle.loads(self.pickled)
            times: dict[int, int] = {}
            for batch in batches:
                partitions = batch.column("partition")
                for partition in pc.unique(partitions).to_pylist():
                    part = batch.filter(pc.equal(partitions, partition)).sort_by("offset")
                    yield from _chunk_rows(topology, self.topic, partition, part, times)


def _chunk_rows(
    topology: TopologySpec, topic: str, partition: int, batch: pa.RecordBatch, times: dict[int, int]
) -> Iterator[pa.RecordBatch]:
    """Return chunk rows of a partition's next records. Updates ``times``, the partition times in ms since the epoch."""
    records = _records(batch)
    topic_partition = TopicPartition(topic, partition % topology.layout.partitions[topic])
    task: TaskId = topology.layout.tasks_of[topic_partition][0]
    clock, start, end = WallClock(host_clock()), records.offsets[0], records.offsets[-1] + 1
    if topology.plan.runs_before_shuffle(topology.plan.subtopologies[task.subtopology]):
        read = PlannedRead("", clock, times={topic: times})
        stage = MapStage(topology, task, OffsetRange(topic, partition, start, end), read)
        yield from stage.run(records)
        yield from stage.finish()
        times[partition] = stage.time_ms
        return
    lane = "" if partition == topic_partition.partition else str(partition)
    group, origin = topology.groups[task], (*topic_partition, lane, start, end)
    payload = wire.encode(records)
    yield wire.arrow_rows(
        [wire.chunk_row(group, wire.RECORDS, task, payload, batch="", clock=clock, origin=origin)]
    )


def _records(batch: pa.RecordBatch) -> Records:
    milliseconds = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    headers = None
    if "headers" in batch.schema.names and batch.column("headers").null_count < batch.num_rows:
        headers = wire.headers_of(batch.column("headers"))
    return Records(
        batch.column("key").cast(pa.binary()).to_pylist(),
        batch.column("value").cast(pa.binary()).to_pylist(),
        pc.fill_null(milliseconds, -1).to_pylist(),
        batch.column("offset").to_pylist(),
        headers,
    )


def _result_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn output chunk rows into rows. Reports are dropped, because no application receives them."""
    for batch in batches:
        rows = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), batch.column(3))
        for kind, topic, payload in rows:
            if kind == wire.SEND:
                yield _exploded(topic, wire.decode_batch(payload.as_buffer()))


def _exploded(topic: str, sent: pa.RecordBatch) -> pa.RecordBatch:
    times, headers = wire.times_and_headers(sent)
    columns = {
        "topic": pa.array([topic] * sent.num_rows, pa.string()),
        "key": sent.column("key"),
        "value": sent.column("value"),
        "timestamp": times,
        "headers": headers,
    }
    return pa.RecordBatch.from_pydict(columns)
