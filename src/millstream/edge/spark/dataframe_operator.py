"""A topology as an operator of a user's own Spark query: the implementation of ``millstream.spark``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millstream.core.engine.policy import ErrorPolicies
from millstream.core.model.errors import SettingsError, TopicNotFoundError, TopologyError
from millstream.core.topology.layout import lay_out
from millstream.core.topology.nodes import Sink
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.fetch import KafkaFetcher
from millstream.drivers.spark import topic_rows
from millstream.drivers.spark.driver import transform as _transform
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.driver.query import register
from millstream.drivers.spark.driver.spark_session import refuse_connect, use_this_python
from millstream.drivers.spark.driver.wanted import keep_state_in, lacking_lines, tell_lacking
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.spec import TopologySpec
from millstream.edge.planning.async_workers import refuse_calls
from millstream.edge.planning.store_engines import copies_spec
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.spark.cluster_checks import check_secrets
from millstream.edge.spark.required_packages import check_spark_packages


def transform(
    topology: Topology,
    inputs: Mapping[str, DataFrame],
    *,
    name: str,
    state_dir: str | Path | None = None,
    partitions: int | None = None,
    policies: ErrorPolicies | None = None,
    app_config: Mapping[str, Any] | None = None,
    py_modules: Collection[str] | None = None,
) -> DataFrame:
    """Run a topology over streaming DataFrames, and return its results as one DataFrame.

    The caller reads, writes and checkpoints. The caller's sink determines the delivery guarantee; state is exactly once, as for any
    stateful operator of Spark. Wall-clock punctuation runs only in micro-batches that bring records to the task.

    The session may be classic or Spark Connect. The caller starts the query, so the settings of the state store cannot be set for the
    query alone: this function sets those that the session does not set itself. It logs a warning for each setting that the session lacks.

    Args:
        topology: The topology. A re-key after a stateful operator is refused, because it needs a Kafka topic.
        inputs: A streaming DataFrame for each topic of the topology, and for each topic that one of its patterns should match. Its
            columns are those of Spark's Kafka source: key (binary), value (binary), partition (int), offset (long), timestamp and,
            optionally, headers (array<struct<key: string, value: binary>>).
        name: Unique among the stateful queries of this host; names the directory of local copies.
        state_dir: Directory of local copies; None for the setting ``state_dir``.
        partitions: Number of tasks per sub-topology; None for the session's ``spark.sql.shuffle.partitions``. It must stay the
            same as long as the query's checkpoint is used.
        policies: What happens to records that fail; None stops the query. Dead letters are rows of the result, so the record
            that stops the query has none.
        app_config: The value of ``context.app_config`` in processors.
        py_modules: Modules and packages of the program that are sent to Spark's workers. None for those that the topology's
            functions come from and import, if workers cannot import them.

    Returns:
        A streaming DataFrame with the columns of Spark's Kafka sink, which are topic (string), key (binary), value (binary), timestamp and
        headers (array<struct<key: string, value: binary>>).

    Raises:
        TopologyError: If the topology is not valid, needs an internal Kafka topic, or has a sink with a partitioner.
        TopicNotFoundError: If a topic of the topology has no DataFrame.
        SparkRuntimeError: If a DataFrame lacks a column, or a topology cannot use the session's state store.

    Source: Spark's ``transformWithState``, which it uses.

    Example:
        The caller casts columns that are not binary; the README has a tested program::

            lines = spark.readStream.format("kafka")...load()
            counts = ms.spark.transform(topology, {"lines": lines}, name="word-count")
            counts.writeStream.format("kafka")...start()
    """
    check_spark_packages()
    plan = topology.plan(name, existing=inputs)
    _refuse_global_stores(plan)
    refuse_calls(plan)
    _check_inputs(plan, inputs)
    session = next(iter(inputs.values())).sparkSession
    use_this_python()
    keep_state_in(session)
    tell_lacking(lacking_lines(session, {}))
    shuffle_partitions = int(session.conf.get("spark.sql.shuffle.partitions") or 200)
    layout = lay_out(plan, dict.fromkeys(plan.external_topics, partitions or shuffle_partitions))
    groups, failing = grouping_keys(layout.tasks), policies or ErrorPolicies()
    failing.check_nodes(plan)
    settings = settings_from({"bootstrap_servers": "unused"})
    cache_bytes = settings.statestore_cache_max_bytes
    spec = TopologySpec(
        plan, layout, groups, failing, {}, app_config=app_config or {}, cache_bytes=cache_bytes
    )
    home = settings.state_dir if state_dir is None else Path(state_dir)
    copies = copies_spec(plan, settings, home / name / "tasks")
    return _transform.transform(inputs, HostSpec(spec, copies), py_modules)


def _refuse_global_stores(plan: Plan) -> None:
    """Refuse global stores in a query whose micro-batches Millstream does not plan."""
    if plan.global_parts:
        stores = ", ".join(repr(store) for part in plan.global_parts for store in part.stores)
        topics = ", ".join(map(repr, plan.global_part_of))
        raise TopologyError(
            f"the topology keeps {topics} in the global store {stores}, whose offsets must be planned with each micro-batch: "
            "run it as a millstream.Application, or join the DataFrame with the table before the transformation"
        )


def _check_inputs(plan: Plan, inputs: Mapping[str, DataFrame]) -> None:
    missing = [topic for topic in plan.external_topics if topic not in inputs]
    unknown = [topic for topic in inputs if topic not in plan.external_topics]
    if missing or unknown:
        raise TopicNotFoundError(
            f"the topology reads {', '.join(plan.external_topics)}, but the DataFrames are for "
            f"{', '.join(inputs) or 'nothing'}: pass one DataFrame for each of these topics, and no others"
        )
    if plan.changelogs:
        raise TopologyError(
            f"store {next(iter(plan.changelogs))!r} has a changelog topic, which only a millstream.Application publishes"
        )
    placed = [
        node.name
        for sub in plan.subtopologies
        for node in sub.nodes.values()
        if isinstance(node, Sink) and node.partitioner is not None and node.topic not in plan.internal_topics
    ]
    if placed:
        raise TopologyError(
            f"sink {placed[0]!r} has a partitioner, but the result of transform() has no partitions: its writer chooses them. "
            "Leave the partitioner out, or run the topology as a millstream.Application"
        )
    if plan.fan_out_sinks:
        raise TopologyError(
            f"topic {min(plan.fan_out_sinks)!r} is written with fan_out=True, but the writer of the result of transform() sends the records. "
            "Run the topology as a millstream.Application"
        )
    through_kafka = [topic.name for topic in plan.internal_topics.values() if not topic.through_shuffle]
    if through_kafka:
        raise TopologyError(
            f"the topology re-keys after a stateful operator, which needs the Kafka topic {through_kafka[0]!r}; run it as a "
            "millstream.Application, or split it into two transformations"
        )


def read_kafka(session: SparkSession, topics: str | list[str], **settings: Any) -> DataFrame:
    """Read topics as a streaming DataFrame with the columns of Spark's Kafka source, without a connector jar.

    Args:
        session: The session.
        topics: The name of one topic, or a list of names.
        **settings: Settings of an ``Application``; ``bootstrap_servers`` is required.

    Returns:
        A streaming DataFrame with the columns key and value (binary), topic (string), partition (int), offset (long), timestamp and
        headers (array<struct<key: string, value: binary>>).

    Raises:
        TopicNotFoundError: If a topic does not exist.
        SettingsError: If a setting is invalid, or a secret would cross a cluster unprotected.
        SparkRuntimeError: If the session is a Spark Connect session.

    Source: Spark's Kafka source (``spark.readStream.format("kafka")``).

    Example:
        >>> lines = ms.spark.read_kafka(spark, "lines", bootstrap_servers="localhost:9092")  # doctest: +SKIP
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise SettingsError("read_kafka needs at least one topic")
    checked = settings_from(settings)
    if checked.auto_offset_reset == "none":
        raise SettingsError(
            "read_kafka has no group with offsets: auto_offset_reset is 'earliest' or 'latest' for it"
        )
    refuse_connect()
    check_secrets(checked, session)
    broker = Broker(checked.client("admin", "read-kafka"), "read-kafka", checked.read_committed)
    counts = broker.partition_counts(names)
    missing = [topic for topic in names if topic not in counts]
    if missing:
        raise TopicNotFoundError(
            f"the broker has no topic {', '.join(map(repr, missing))}; create it, or correct the name"
        )
    fetcher = KafkaFetcher(checked.client("consumer", "read-kafka"), "read-kafka", checked.read_committed)
    reads = topic_rows.RowSourceSpec(
        counts,
        broker,
        fetcher,
        checked.max_batch_records,
        session.sparkContext.defaultParallelism,
        checked.auto_offset_reset,
    )
    use_this_python()
    register(session, topic_rows.KafkaRowSource)
    return session.readStream.format(topic_rows.FORMAT).option("spec", reads.to_option()).load()
