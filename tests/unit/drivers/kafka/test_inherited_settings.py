"""Fan-out topics inherit the replica count and the configuration of the topic, but neither defaults nor settings of its partitions."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigEntry, ConfigSource

from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.fanout.inherited_settings import own_config, replica_count

OF_TOPIC = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
ENTRIES = [
    ConfigEntry("retention.ms", "1000", OF_TOPIC),
    ConfigEntry("cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG.value),
    ConfigEntry("min.insync.replicas", "2", ConfigSource.STATIC_BROKER_CONFIG.value),
    ConfigEntry("leader.replication.throttled.replicas", "0:1", OF_TOPIC),
    ConfigEntry("secret", None, OF_TOPIC),
]


class Admin:
    """A broker with the topic 'orders', whose partitions have different numbers of replicas while they are reassigned."""

    def __init__(self) -> None:
        self.refusal: int | None = None

    def last_problem(self) -> None: ...

    def list_topics(self, timeout: float) -> Any:
        partitions = {n: SimpleNamespace(replicas=[1, 2, 3][: n + 2]) for n in range(2)}
        return SimpleNamespace(topics={"orders": SimpleNamespace(partitions=partitions)})

    def describe_configs(self, wanted: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        (resource,), future = wanted, Future[Any]()
        if self.refusal is None:
            future.set_result({entry.name: entry for entry in ENTRIES})
        else:
            future.set_exception(KafkaException(KafkaError(self.refusal)))
        return {resource: future}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    admin = Admin()
    monkeypatch.setattr(Broker, "admin", lambda _: admin)
    return admin


@pytest.mark.usefixtures("admin")
def test_only_settings_of_the_topic_as_a_whole_are_inherited() -> None:
    assert own_config(Broker({}, "group"), "orders") == {"retention.ms": "1000"}


@pytest.mark.usefixtures("admin")
def test_the_replica_count_is_the_largest_of_the_partitions_of_the_topic() -> None:
    assert replica_count(Broker({}, "group"), "orders") == 3
    assert replica_count(Broker({}, "group"), "missing") == -1


def test_a_missing_permission_is_logged_and_the_defaults_of_the_broker_apply(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    with caplog.at_level(logging.WARNING, "millstream"):
        assert own_config(Broker({}, "group"), "orders") == {}
    assert "gets the broker's defaults" in caplog.text
