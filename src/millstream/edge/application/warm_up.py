"""Warm-up: a query that a standby runs while it waits, so that the query of a takeover starts faster.

The first query of a session takes several core-seconds. The warm-up has the source, operator and sink of an application, but neither its
topology nor its checkpoint: it reads the topic of the election, which has no records, and keeps its checkpoint in a private directory. It
sends nothing and commits no offsets.

Rejected: a warm-up with the topology of the application, which would call the user's functions in a driver that is not elected.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millstream.core.dsl.builder import StreamsBuilder
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.topology.internal import driver_topic
from millstream.core.topology.layout import lay_out
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlAddress
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.driver.query import QuerySpec, start
from millstream.drivers.spark.driver.spark_session import configured
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.sink import SinkSpec
from millstream.drivers.spark.spec import SourceSpec, TopologySpec
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.planning.plans import spark_partitions
from millstream.edge.planning.store_engines import copies_spec


def start_warm_up(session: SparkSession, clients: Clients) -> StreamingQuery:
    """Start a warm-up, which ends by itself after one micro-batch. A later one continues the checkpoint of an earlier one."""
    directory = process_directory() / f"warm-up-{clients.application_id}"
    query = _query(session, clients, directory)
    partitions = spark_partitions(clients.settings)
    with configured(session, clients.settings.spark, partitions, query.checkpoint_location):
        return start(session, query)


def _query(session: SparkSession, clients: Clients, directory: Path) -> QuerySpec:
    settings, topic = clients.settings, driver_topic(clients.application_id)
    topology = _topology(topic)
    nobody = ControlAddress(str(directory / "no-socket"), b"")
    source = SourceSpec(
        topology,
        clients.broker(),
        clients.fetcher(),
        nobody,
        settings.max_batch_records,
        settings.max_batch_bytes,
        session.sparkContext.defaultParallelism,
        "latest",
        Initialization(),
    )
    host = HostSpec(topology, copies_spec(topology.plan, settings, directory / "tasks"))
    sink = SinkSpec(None, frozenset(), nobody)
    checkpoint = (directory / "checkpoint").as_uri()
    return QuerySpec(f"{topic}-warm-up", source, host, sink, checkpoint, until_end=True, py_modules=())


def _topology(topic: str) -> TopologySpec:
    builder = StreamsBuilder()
    builder.stream(topic).group_by_key().count(store="counts")
    plan = builder.build().plan(topic)
    layout = lay_out(plan, {topic: 1})
    return TopologySpec(plan, layout, grouping_keys(layout.tasks), ErrorPolicies(), {})
