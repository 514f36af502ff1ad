"""Applications of a user with few permissions, on a broker that requires a password."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.fanout.epochs import control_topic
from millstream.core.model.errors import (
    BrokerUnavailableError,
    MillstreamError,
    ProductionError,
    TopicNotFoundError,
)
from millstream.drivers.kafka.fanout.key_range_producer import KeyRangeProducer
from millstream.edge.preflight.preflight_check import preflight
from millstream.edge.records.topic_records import write
from millstream.edge.settings.settings_loading import settings_from
from millstream.testing import EmbeddedKafka
from millstream.testing._cluster import free_ports

from .acls import grant
from .conftest import unique
from .helpers import Apps, committed_records, latest
from .topologies import key_count

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(500)]

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "shop",
    "sasl.password": "shop-password",
}
GUEST = {**LOGIN, "sasl.username": "guest", "sasl.password": "guest-password"}
"""A user who may not write to any topic."""
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_shop="shop-password" user_guest="guest-password";'
)


@dataclass
class Secured:
    """A broker with a second listener, which requires a password and enforces permissions.

    Attributes:
        apps: Applications of the user ``shop``. Tests write and read through the other listener, as an administrator.
        servers: The address of that listener.
    """

    apps: Apps
    servers: str

    def topics(self) -> tuple[str, str]:
        """Create an input and an output topic, whose names do not begin with the id of the application."""
        names = f"in-of-{self.apps.id}", f"out-of-{self.apps.id}"
        for name in names:
            self.apps.kafka.create_topic(name)
        return names

    def app(self, topology: ms.Topology, **settings: Any) -> ms.Application:
        login = {"bootstrap_servers": self.servers, "kafka": LOGIN, "request_timeout_ms": 10_000}
        return self.apps.application(topology, **{**login, **settings})

    def printed(self, topology: ms.Topology, **settings: Any) -> list[str]:
        """Return the permissions that the plan prints, one per operation."""
        lines = preflight(self.apps.application(topology, **settings)).permissions
        split = [re.sub(r" \(.*\)$", "", line).split(" on ") for line in lines]
        return [
            f"{operation} on {resource}"
            for operations, resource in split
            for operation in operations.split(", ")
        ]

    def grant(self, permissions: list[str], user: str = "shop") -> None:
        grant(self.apps.kafka, permissions, user)


@pytest.fixture(scope="module")
def secured_kafka() -> Iterator[tuple[EmbeddedKafka, str]]:
    [port] = free_ports(1)
    properties = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,RELAYED:SASL_PLAINTEXT",
        "listener.name.relayed.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.relayed.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(partitions=2, properties=properties, relayed=[(port, port)]) as broker:
        yield broker, f"127.0.0.1:{port}"


@pytest.fixture
def secured(
    secured_kafka: tuple[EmbeddedKafka, str],
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Secured]:
    kafka, servers = secured_kafka
    apps = Apps(kafka, unique(request), tmp_path)
    yield Secured(apps, servers)
    apps.stop_all()


def with_internal_topics(source: str, sink: str) -> ms.Topology:
    """Count in a store with a changelog topic, and then through a repartition topic."""
    builder = ms.StreamsBuilder()
    per_key = (
        builder.stream(source).group_by_key().count(store=ms.stores.options("counts", changelog="kafka"))
    )
    per_letter = per_key.to_stream().group_by(lambda key, _: key[0]).count(store="per-letter")
    per_letter.to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


def fanning_out(source: str, sink: str) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream(source).to(sink, fan_out=True)
    return builder.build()


@pytest.mark.parametrize(
    ("make", "guarantee", "values"),
    [
        (key_count, "at_least_once", [3, 6]),
        (with_internal_topics, "at_least_once", [3, 6]),
        (with_internal_topics, "exactly_once", [3, 6]),
        (fanning_out, "at_least_once", None),
    ],
)
def test_the_permissions_that_the_plan_prints_are_sufficient(
    secured: Secured,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[str, str], ms.Topology],
    guarantee: str,
    values: list[int] | None,
) -> None:
    source, sink = secured.topics()
    topology = make(source, sink)
    secured.grant(secured.printed(topology, processing_guarantee=guarantee))
    assert preflight(secured.app(topology, processing_guarantee=guarantee)).problems == ()
    for run in range(2):
        secured.apps.kafka.produce(source, [("ann", "x")] * 3)
        with caplog.at_level(logging.WARNING):
            secured.app(topology, processing_guarantee=guarantee).run(until="end")
        results = committed_records(secured.apps.kafka, sink)
        if values is None:
            assert len(results) == 3 * (run + 1)
        else:
            assert list(latest(results, ms.serdes.int64).values()) == [values[run]]
    warnings = [record for record in caplog.records if record.name.startswith("millstream")]
    assert [record.getMessage() for record in warnings if record.name != "millstream.librdkafka"] == []


@pytest.mark.parametrize(
    ("make", "guarantee", "missing", "message"),
    [
        (key_count, "at_least_once", "Read on topic in-of-{id}", "does not permit .* reading in-of-{id}-"),
        (
            key_count,
            "at_least_once",
            "Write on topic out-of-{id}",
            "this user may not write to (any topic|out-of-{id}); grant it the WRITE permission",
        ),
        (
            key_count,
            "at_least_once",
            "Read on group {id}",
            "does not permit .* committing offsets of group '{id}'",
        ),
        (
            key_count,
            "exactly_once",
            "Write on topic out-of-{id}",
            "does not permit .* sending to {id}-commits, out-of-{id} and committing offsets of group '{id}' in a transaction",
        ),
        (
            key_count,
            "exactly_once",
            "Read on group {id}-commits",
            "does not permit .* fetching the committed offsets of group '{id}-commits'",
        ),
        (
            key_count,
            "exactly_once",
            "Write on transactional ids with the prefix {id}-",
            "does not permit .* taking over the transactional id",
        ),
        (
            fanning_out,
            "at_least_once",
            "Write on transactional ids with the prefix out-of-{id}-fanout-",
            "does not permit .* taking over the transactional id 'out-of-{id}-fanout-",
        ),
        (
            fanning_out,
            "at_least_once",
            "Read on groups with the prefix out-of-{id}-fanout-",
            "could not be sent in 5 transactions: .*Group authorization failed",
        ),
    ],
)
def test_a_missing_permission_is_named_in_the_error(
    secured: Secured, make: Callable[[str, str], ms.Topology], guarantee: str, missing: str, message: str
) -> None:
    source, sink = secured.topics()
    topology = make(source, sink)
    without = missing.format(id=secured.apps.id)
    granted = secured.printed(topology, processing_guarantee=guarantee)
    assert without in granted
    secured.grant([permission for permission in granted if permission != without])
    secured.apps.kafka.produce(source, [("ann", "x")] * 3)
    with pytest.raises(MillstreamError, match=re.sub(r"\{id\}", secured.apps.id, message)):
        secured.app(topology, processing_guarantee=guarantee).run(until="end")


@pytest.mark.parametrize("lines", [{}, {"debug": "all"}], ids=["few-log-lines", "many-log-lines"])
def test_a_user_who_may_not_write_to_any_topic_gets_an_authorization_error(
    secured: Secured, lines: dict[str, str]
) -> None:
    """The client runs callbacks, such as one per log line, while its own exception is set."""
    _, sink = secured.topics()
    secured.grant([f"Describe on topic {sink}"], "guest")
    settings = settings_from({"bootstrap_servers": secured.servers, "kafka": {**GUEST, **lines}})
    with pytest.raises(ProductionError, match=f"topic '{sink}': .*Cluster authorization failed"):
        write(settings, sink, [(b"k", b"v", None, ())])
    control = control_topic(sink)
    secured.apps.kafka.create_topic(control, 1, {"cleanup.policy": "compact"})
    sessions = f"Write on transactional ids with the prefix {control}-"
    secured.grant([f"Read on topic {control}", sessions], "guest")
    with pytest.raises(MillstreamError, match=f"does not permit .* writing to '{control}'"):
        KeyRangeProducer({"bootstrap.servers": secured.servers, **GUEST, **lines}, sink)


def test_the_error_for_a_missing_topic_mentions_topics_that_the_user_may_not_describe(
    secured: Secured,
) -> None:
    source, sink = secured.topics()
    with pytest.raises(TopicNotFoundError, match="Topics that this user may not describe"):
        secured.app(key_count(source, sink)).run(until="end")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sasl.password": "wrong"}, "Invalid username or password.* check security.protocol, sasl.*"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "Unsupported SASL mechanism.* check security.protocol, sasl.*"),
        ({"security.protocol": "SSL"}, "SSL handshake failed"),
    ],
)
def test_the_error_for_a_refused_connection_names_its_cause(
    secured: Secured, settings: dict[str, str], message: str
) -> None:
    topology = key_count(*secured.topics())
    with pytest.raises(BrokerUnavailableError, match=message):
        secured.app(topology, kafka={**LOGIN, **settings}, request_timeout_ms=3_000).run(until="end")
