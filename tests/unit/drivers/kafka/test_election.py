"""Candidates in the election of the driver: missing permissions, other errors, and their settings."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from millstream.core.model.errors import MillstreamError
from millstream.drivers.kafka import election as module
from millstream.drivers.kafka.election import Election

_SHORT_TIMES = {"bootstrap.servers": "here:1", "session.timeout.ms": 3_000, "max.poll.interval.ms": 3_000}
"""Settings of a user. Only the election has a consumer with group membership: Spark assigns the partitions to tasks."""


class Consumer:
    """A consumer whose messages, usually errors, come from the test."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.id = "this"
        self.messages: queue.Queue[Any] = queue.Queue()

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.assign, self.lose = callbacks["on_assign"], callbacks["on_lost"]

    def poll(self, timeout: float) -> Any:
        try:
            code = self.messages.get(timeout=0.01)
        except queue.Empty:
            return None
        return SimpleNamespace(error=lambda: KafkaError(code))

    def memberid(self) -> str:
        return self.id

    def close(self) -> None: ...


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Election]:
    monkeypatch.setattr(module, "Consumer", Consumer)
    monkeypatch.setattr(module, "living_drivers", lambda broker, application_id: [])
    broker: Any = SimpleNamespace(ensure_topic=lambda *_: 1, servers="here:1")
    new_candidate = Election(_SHORT_TIMES, broker, "shop", 1)
    yield new_candidate
    new_candidate.leave()


def receive(candidate: Election, *codes: int) -> None:
    """Let the candidate receive errors."""
    consumer: Any = candidate._consumer
    for code in codes:
        consumer.messages.put(code)
    while not consumer.messages.empty():
        candidate._thread.join(0.01)


@pytest.mark.parametrize(
    "code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_candidate_without_permission_reports_an_error(
    candidate: Election, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """Previously, a standby with permission to describe the group but not to read it waited forever, as if it had lost."""
    with caplog.at_level(logging.WARNING):
        receive(candidate, code, code, code)
        with pytest.raises(MillstreamError, match="does not permit"):
            candidate.wait(10)
    assert [record.message.count("shop-driver") for record in caplog.records] == [1]


def test_a_candidate_that_receives_the_permission_later_is_elected(candidate: Election) -> None:
    receive(candidate, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(MillstreamError, match="does not permit"):
        candidate.wait(10)
    consumer: Any = candidate._consumer
    consumer.assign(consumer, [TopicPartition("shop-driver", 0)])
    assert candidate.wait(10)


def test_other_errors_are_ignored(candidate: Election) -> None:
    receive(candidate, KafkaError._ALL_BROKERS_DOWN)
    assert not candidate.wait(0)


def test_a_driver_that_has_left_the_group_does_not_ask_about_it(
    candidate: Election, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previously, a driver without a network asked until an assertion of librdkafka ended its process."""
    asked = threading.Event()
    monkeypatch.setattr(module, "_group", lambda broker, name: asked.set())
    monkeypatch.setattr(module, "_DOUBT_S", 0.0)
    consumer: Any = candidate._consumer
    consumer.id = ""
    consumer.assign(consumer, [TopicPartition("shop-driver", 0)])
    consumer.lose(consumer, [TopicPartition("shop-driver", 0)])
    receive(candidate, *[KafkaError._ALL_BROKERS_DOWN] * 3)
    assert not asked.is_set()
    consumer.id = "this"
    assert asked.wait(10)


def test_an_election_topic_with_several_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, several drivers were elected at the same time, and all of them ran the application."""
    monkeypatch.setattr(module, "Consumer", Consumer)
    monkeypatch.setattr(module, "living_drivers", lambda broker, application_id: [])
    broker: Any = SimpleNamespace(ensure_topic=lambda *_: 3, servers="here:1")
    with pytest.raises(MillstreamError, match="'shop-driver' has 3 partitions"):
        Election({}, broker, "shop", 1)


def test_a_candidate_ignores_the_timeouts_in_the_settings_of_the_user(candidate: Election) -> None:
    """Previously, the client refused a session timeout above the user's max.poll.interval.ms, so no standby started."""
    consumer: Any = candidate._consumer
    settings = {name: value for name, value in consumer.settings.items() if not callable(value)}
    confluent_kafka.Consumer({**settings, "log_level": 0}).close()
    assert settings["session.timeout.ms"] == module.SESSION_MS
    assert settings["max.poll.interval.ms"] >= 10 * module.SESSION_MS
