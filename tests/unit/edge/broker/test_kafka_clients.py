"""The Kafka clients of an application: how long they wait, how large records may be, and when marks are searched for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka import marks
from millstream.drivers.kafka.clients import discard, warmed
from millstream.drivers.kafka.fanout import sender
from millstream.drivers.kafka.fanout.sender import FanOutSender
from millstream.drivers.kafka.internal_topics import InternalTopics
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.settings.settings_loading import settings_from


def clients(**producer: Any) -> Clients:
    return Clients(settings_from({"bootstrap_servers": "unused", "producer": producer}), "app")


@pytest.fixture
def _configs(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "small": {"max.message.bytes": "5000"},
        "large": {"max.message.bytes": "1048588"},
        "unknown": {"retention.ms": "1"},
    }

    def topic_configs(
        self: InternalTopics, topics: Collection[str], otherwise: str
    ) -> dict[str, dict[str, str]]:
        return {topic: known[topic] for topic in topics}

    monkeypatch.setattr(InternalTopics, "topic_configs", topic_configs)


def test_producers_of_fan_out_topics_wait_for_brokers_as_long_as_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They used to wait 30 s, so a broker that was away for a minute ended the application."""
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out", fan_out=True)
    settings = settings_from({"bootstrap_servers": "unused", "task_timeout_ms": 70_000})
    results, _ = Clients(settings, "app").senders(builder.build().plan("app"))
    assert isinstance(results, FanOutSender)
    opened: list[Any] = []

    class Producer:
        def __init__(self, settings: dict[str, Any], topic: str, *, patience_s: float) -> None:
            opened.append((topic, patience_s, [name for name in settings if name.startswith("millstream")]))

        def hand_over(self, records: Records) -> None: ...

    monkeypatch.setattr(sender, "KeyRangeProducer", Producer)
    results.publish("out", Records([b"k"], [b"v"], [1]))
    discard(warmed(sender._open_producer, results._settings("out")))
    assert opened == [("out", 70.0, [])]


COUNTS = {"small": 1, "large": 3, "unknown": 1, "not there": 0}


@pytest.mark.usefixtures("_configs")
class TestLimitsOfRecords:
    def test_come_from_the_producer_and_from_topics_with_a_lower_limit(self) -> None:
        assert clients().most_bytes() == 1_000_000
        assert clients().most_bytes_in(COUNTS) == {"small": 5000}
        raised = clients(**{"message.max.bytes": 2_000_000})
        assert raised.most_bytes() == 2_000_000
        assert raised.most_bytes_in(COUNTS) == {"small": 5000, "large": 1_048_588}

    @pytest.mark.parametrize(("codec", "bound"), [("lz4", False), ("none", True)])
    def test_of_topics_do_not_apply_to_a_producer_that_compresses(self, codec: str, bound: bool) -> None:
        compressing = clients(**{"compression.type": codec})
        assert compressing.most_bytes_in(COUNTS) == ({"small": 5000} if bound else {})


class CommitsTopic:
    """Brokers and readers of a commits topic with two partitions, whose marks are not among the offsets of the group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.created: list[Mapping[str, str]] = []
        self.read: list[int] = []
        monkeypatch.setattr(marks, "Broker", lambda *_: self)
        monkeypatch.setattr(marks, "KafkaFetcher", lambda *_, **__: self)

    group = "app-commits"

    def ensure_topic(self, topic: str, partitions: int, config: Mapping[str, str], _: int) -> int:
        assert (topic, partitions) == ("app-commits", 2)
        self.created.append(config)
        return partitions

    def committed_offsets(self, counts: Mapping[str, int]) -> dict[str, dict[int, int]]:
        return {}

    def begin_offsets(self, counts: Mapping[str, int]) -> dict[str, dict[int, int]]:
        return {topic: dict.fromkeys(range(count), 0) for topic, count in counts.items()}

    def end_offsets(self, counts: Mapping[str, int]) -> dict[str, dict[int, int]]:
        return {topic: dict.fromkeys(range(count), 7) for topic, count in counts.items()}

    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        self.read.append(planned.partition)
        yield Records([b"task c 0"], [b"{}"], [0], [0])


@pytest.mark.parametrize(("guarantee", "read"), [("at_least_once", []), ("exactly_once", [0, 1])])
def test_only_exactly_once_searches_the_commits_topic_for_marks(
    monkeypatch: pytest.MonkeyPatch, guarantee: str, read: list[int]
) -> None:
    topic = CommitsTopic(monkeypatch)
    settings = {"processing_guarantee": guarantee, "internal_topic_config": {"min.insync.replicas": "2"}}
    Clients(settings_from({"bootstrap_servers": "unused", **settings}), "app").prepare_commits(2)
    assert topic.read == read
    small = {"cleanup.policy": "compact", "segment.bytes": "52428800"}
    assert topic.created == [{**small, "min.insync.replicas": "2"}]
