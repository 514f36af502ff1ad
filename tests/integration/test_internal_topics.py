"""Internal topics: brokers with other defaults, wrong configurations, purging, and a kill of the application."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.core.model.ids import TopicPartition
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.internal_topics import InternalTopics
from millstream.testing import EmbeddedKafka
from millstream.testing.crash import Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram
from proofs.sizes import sized

from .acls import grant
from .conftest import unique
from .helpers import Apps, eventually, latest
from .topologies import people_per_region

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(500)]

CREATE_TIME = {"message.timestamp.type": "CreateTime"}
HOUR = 3_600_000


@pytest.fixture(scope="module")
def unlike_kafka() -> Iterator[EmbeddedKafka]:
    """A broker whose topics are compacted and have append times by default."""
    properties = {"log.message.timestamp.type": "LogAppendTime", "log.cleanup.policy": "compact"}
    with EmbeddedKafka(partitions=2, properties=properties) as broker:
        yield broker


@pytest.fixture
def unlike(
    unlike_kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Apps]:
    """Applications on this broker."""
    apps = Apps(unlike_kafka, unique(request), tmp_path)
    yield apps
    apps.stop_all()


def configs(kafka: EmbeddedKafka, topic: str) -> dict[str, str]:
    broker = Broker({"bootstrap.servers": kafka.bootstrap_servers}, "test")
    return InternalTopics(broker).topic_configs([topic])[topic]


def first_offsets(kafka: EmbeddedKafka, topic: str) -> dict[int, int]:
    broker = Broker({"bootstrap.servers": kafka.bootstrap_servers}, "test")
    return broker.begin_offsets(broker.partition_counts([topic]))[topic]


def hourly_counts(source: str, sink: str) -> ms.Topology:
    """Count by value and hour; the table makes the repartition use a topic, and the counts have a changelog topic."""
    builder = ms.StreamsBuilder()
    changes = builder.stream(source).to_table(store="last").to_stream()
    hours = changes.group_by(lambda _, region: region).windowed_by(ms.TumblingWindows(HOUR, grace=100 * HOUR))
    counts = hours.count(store=ms.stores.options("by-hour", changelog="kafka"))
    counts.to_stream().map(lambda key, n: (f"{key.key} {key.start}", n)).to(sink, value=ms.serdes.int64)
    return builder.build()


def test_event_times_and_records_survive_a_broker_with_other_defaults(unlike: Apps) -> None:
    source, sink = f"{unlike.id}-in", f"{unlike.id}-out"
    for topic in (source, sink):
        unlike.kafka.create_topic(topic, 2, {**CREATE_TIME, "cleanup.policy": "delete"})
    rows = [(f"k{i % 9}", f"r{i % 4}", 1 + i * HOUR // 10) for i in range(200)]
    unlike.kafka.produce(source, sorted(rows, key=lambda row: row[2]))
    unlike.run(
        hourly_counts(source, sink),
        internal_topic_config={"min.insync.replicas": "1", "segment.ms": "123456"},
    )
    expected = Counter(f"{region} {time // HOUR * HOUR}" for _, region, time in rows)
    assert latest(unlike.kafka.consume(sink), ms.serdes.int64) == expected
    [repartition] = [
        name
        for name in AdminClient({"bootstrap.servers": unlike.kafka.bootstrap_servers}).list_topics().topics
        if name.startswith(unlike.id) and name.endswith("-repartition")
    ]
    repartition_config = configs(unlike.kafka, repartition)
    assert {
        name: repartition_config[name]
        for name in ("cleanup.policy", "retention.ms", "message.timestamp.type", "segment.ms")
    } == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "message.timestamp.type": "CreateTime",
        "segment.ms": "123456",
    }
    changelog = configs(unlike.kafka, f"{unlike.id}-by-hour-changelog")
    assert (changelog["message.timestamp.type"], changelog["segment.ms"]) == ("CreateTime", "123456")
    assert set(changelog["cleanup.policy"].split(",")) == {"compact", "delete"}


def test_the_start_fails_if_an_internal_topic_has_a_wrong_configuration(unlike: Apps) -> None:
    source, sink = f"{unlike.id}-in", f"{unlike.id}-out"
    internal = f"{unlike.id}-per-region-repartition"
    for topic in (source, sink, internal):
        unlike.kafka.create_topic(topic, 2)
    with pytest.raises(SettingsError) as error:
        unlike.run(people_per_region(source, sink))
    message = str(error.value)
    assert f"'{internal}' has cleanup.policy=compact, message.timestamp.type=LogAppendTime" in message
    change = (
        f"--entity-name {internal} --add-config cleanup.policy=[delete],message.timestamp.type=[CreateTime]"
    )
    assert change in message
    unlike.kafka.tool(
        "kafka-configs",
        "--alter",
        "--entity-type",
        "topics",
        *change.split(),
    )
    unlike.kafka.produce(source, [("ann", "north"), ("bob", "north")])
    unlike.run(people_per_region(source, sink))
    assert latest(unlike.kafka.consume(sink), ms.serdes.int64) == {"north": 2}


def test_a_user_without_permission_to_read_configurations_or_delete_records_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    properties = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": True}
    with EmbeddedKafka(properties=properties) as kafka:
        kafka.create_topic("internal", 1)
        kafka.produce("internal", [("k", "v")])
        topics = InternalTopics(Broker({"bootstrap.servers": kafka.bootstrap_servers}, "test"))
        assert topics.topic_configs(["internal"])["internal"]["cleanup.policy"] == "delete"
        assert topics.delete_records({TopicPartition("internal", 0): 1})
        grant(kafka, [f"{operation} on topic internal" for operation in ("Describe", "Read", "Write")], "*")
        eventually(lambda: not topics.delete_records({TopicPartition("internal", 0): 1}), "the denial")
        with caplog.at_level(logging.WARNING):
            logging.getLogger("millstream.kafka").setLevel(logging.WARNING)
            assert topics.topic_configs(["internal"]) == {}
        assert any("may not read the configuration of topics" in line for line in caplog.messages)


def regions(topics: Topics) -> ms.Topology:
    return people_per_region(topics.input, topics.output)


@pytest.mark.parametrize("guarantee", sized(["exactly_once"], ["at_least_once", "exactly_once"]))
def test_repartition_topics_are_purged_and_a_killed_application_continues(
    apps: Apps, guarantee: str, tmp_path: Path
) -> None:
    kafka = apps.kafka
    topics = Topics(*(apps.topic(name, 2) for name in ("input", "output", "ask", "contents")))
    internal = f"{apps.id}-per-region-repartition"
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "state_dir": str(apps.home),
        "master": "local[2]",
        "max_batch_records": 100,
        "processing_guarantee": guarantee,
        "repartition_purge_interval_ms": 100,
        "spark": {"spark.ui.enabled": "false"},
    }
    program = CrashedProgram(tmp_path, Job(apps.id, regions, topics, settings))
    people = [(f"p{i}", f"r{i % 5}") for i in range(600)]

    def purged() -> bool:
        committed = kafka.committed(apps.id, internal)
        return sum(committed.values()) > 0 and first_offsets(kafka, internal) == committed

    def counts() -> Any:
        return latest(kafka.consume(topics.output, isolation="read_committed"), ms.serdes.int64)

    try:
        kafka.produce(topics.input, people[:300])
        program.start()
        eventually(purged, "everything that is committed to be deleted", within_s=120)
        kafka.produce(topics.input, people[300:])
        before = sum(first_offsets(kafka, internal).values())
        eventually(
            lambda: sum(first_offsets(kafka, internal).values()) > before, "another purge", within_s=60
        )
        program.kill()
        kafka.produce(topics.input, [("p0", "r1"), ("p1", None)])
        program.start()
        home = dict(people) | {"p0": "r1"}
        expected = Counter(region for person, region in home.items() if person != "p1")
        eventually(
            lambda: counts() == expected or program.exit_code(), "the counts of all people", within_s=180
        )
        assert counts() == expected, program.last_words()
        assert program.stop(grace_s=60) == 0, program.last_words()
    finally:
        program.kill()
    assert purged()


def test_a_run_to_the_end_deletes_all_processed_records_of_repartition_topics(apps: Apps) -> None:
    people, sink = apps.topic("people", 2), apps.topic("out", 1)
    apps.kafka.produce(people, [(f"p{i}", f"r{i % 4}") for i in range(40)])
    apps.run(people_per_region(people, sink))
    internal = f"{apps.id}-per-region-repartition"
    assert first_offsets(apps.kafka, internal) == apps.kafka.end_offsets(internal)
    apps.kafka.produce(people, [("p0", "r1")])
    apps.run(people_per_region(people, sink))
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"r0": 9, "r1": 11, "r2": 10, "r3": 10}
