"""The query: source, task host and sink as one streaming query with a readable name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming import StreamingQuery

from millstream.drivers.spark import sink, source, wire
from millstream.drivers.spark.driver.checkpoint import LocalFiles, remove_abandoned
from millstream.drivers.spark.driver.modules import send_modules
from millstream.drivers.spark.driver.program_pickle import pickled_program
from millstream.drivers.spark.driver.spark_session import scheme_of
from millstream.drivers.spark.executor.host import TaskHost
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.spec import SourceSpec


@dataclass(frozen=True)
class QuerySpec:
    """The parts of a query.

    Attributes:
        checkpoint_location: Spark's checkpoint: a directory or URL.
        until_end: Whether to stop when all existing records have been processed.
        py_modules: Modules to send to Python workers. None means those that are needed.
    """

    name: str
    source: SourceSpec
    host: HostSpec
    sink: sink.SinkSpec
    checkpoint_location: str
    until_end: bool
    py_modules: Collection[str] | None = None


def hosted(chunks: DataFrame, host: HostSpec) -> DataFrame:
    """Append the task host, the only stateful operator of a query, to a stream of chunk rows."""
    return chunks.groupBy("group").transformWithState(TaskHost(host), wire.OUTPUT_ROWS, "append", "none")


def register(session: SparkSession, *formats: type[DataSource]) -> None:
    """Register data sources in a session that does not know them yet. All parameters are in their options."""
    for data_source in formats:
        try:
            session.dataSource.register(data_source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def _make_active(session: SparkSession) -> None:
    """Make the session active in the JVM's thread, where Spark looks up the format of a sink."""
    jvm: Any = session._jvm
    session._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)


def start(session: SparkSession, spec: QuerySpec) -> StreamingQuery:
    """Start the query. May be called from any thread.

    Raises:
        MillstreamError: If a part of the program cannot be pickled.
    """
    _make_active(session)
    if scheme_of(session, spec.checkpoint_location) == "file":
        remove_abandoned(LocalFiles(Path(unquote(urlparse(spec.checkpoint_location).path))))
    program = pickled_program((spec.source, spec.host, spec.sink), spec.host.topology)
    send_modules(session, program, spec.py_modules)
    register(session, source.KafkaSource, sink.KafkaSink)
    chunks = session.readStream.format(source.FORMAT).option("spec", spec.source.to_option()).load()
    writer = (
        hosted(chunks, spec.host)
        .writeStream.format(sink.FORMAT)
        .queryName(spec.name)
        .option("spec", spec.sink.to_option())
        .option("checkpointLocation", spec.checkpoint_location)
    )
    # The planner decides when a micro-batch begins. A requested commit could not shorten Spark's own trigger interval.
    return (writer.trigger(availableNow=True) if spec.until_end else writer).start()
