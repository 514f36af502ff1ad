"""What an application asks of its clients before anything is sent."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

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

    def topic_configs(self: InternalTopics, topics: Collection[str]) -> dict[str, dict[str, str]]:
        return {topic: known[topic] for topic in topics}

    monkeypatch.setattr(InternalTopics, "topic_configs", topic_configs)


COUNTS = {"small": 1, "large": 3, "unknown": 1, "not there": 0}


@pytest.mark.usefixtures("_configs")
class TestLimitsOfRecords:
    def test_are_the_producers_and_those_of_topics_that_take_less(self) -> None:
        assert clients().most_bytes() == 1_000_000
        assert clients().most_bytes_in(COUNTS) == {"small": 5000}
        raised = clients(**{"message.max.bytes": 2_000_000})
        assert raised.most_bytes() == 2_000_000
        assert raised.most_bytes_in(COUNTS) == {"small": 5000, "large": 1_048_588}

    @pytest.mark.parametrize(("codec", "bound"), [("lz4", False), ("none", True)])
    def test_of_topics_do_not_bind_a_producer_that_compresses(self, codec: str, bound: bool) -> None:
        compressing = clients(**{"compression.type": codec})
        assert compressing.most_bytes_in(COUNTS) == ({"small": 5000} if bound else {})
