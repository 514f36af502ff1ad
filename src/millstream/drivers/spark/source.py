"""The source: plans micro-batches in the Spark driver, reads them in the executors.

Planner and reader are different objects in different processes: the planner lives as long as the query, the reader is
unpickled in the workers. What is read depends on nothing but the offsets of a batch, so that a batch can be read again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.core.runtime.batch_plan import BatchPlan
from millstream.drivers.spark import wire
from millstream.drivers.spark.executor.chunk_reading import read
from millstream.drivers.spark.planned_reads import PlannedRead
from millstream.drivers.spark.planner.planner import Planner
from millstream.drivers.spark.planner.reads import ReadPlanner
from millstream.drivers.spark.spec import SourceSpec

FORMAT = "millstream"


class KafkaSource(DataSource):
    """The data source ``millstream``: chunk rows of the records of a topology's topics."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return wire.CHUNK_ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return KafkaStreamReader(self.options["spec"])


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads. The planner's process keeps one for the query's life; its pickle is the text of the option."""

    def __init__(self, option: str) -> None:
        self._option = option
        self._made: Planner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (KafkaStreamReader, (self._option,))

    # Planning, in the Spark driver.

    @cached_property
    def _spec(self) -> SourceSpec:
        return SourceSpec.planning(self._option)

    @cached_property
    def _reads(self) -> ReadPlanner:
        return ReadPlanner(self._spec)

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            self._made = Planner(self._spec)
            if threading.current_thread() is threading.main_thread():
                # Ctrl-C is the application's, which stops between batches.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins."""
        with wire.crossing():
            return self._planner.first()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of a run to the end."""
        with wire.crossing():
            self._planner.fix_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Leave admission to the planner, which shares a batch fairly among partitions."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next micro-batch; return ``start`` itself if there is nothing to do."""
        with wire.crossing():
            return self._planner.next(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the reads of a planned micro-batch; they depend only on the arguments."""
        with wire.crossing():
            return list(self._reads.reads(BatchPlan.from_json(start), BatchPlan.from_json(end)))

    # Reading, in the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PlannedRead)
        with wire.crossing(), wire.paused_gc():
            yield from read(SourceSpec.reading(self._option), partition)
