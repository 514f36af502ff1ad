"""Connections to the broker that are let go while somebody waits for an answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.core.ports import TopicFacts
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import hang_up

from .helpers import Apps

pytestmark = pytest.mark.broker


def test_an_answer_that_is_waited_for_comes_all_the_same(apps_without_spark: Apps) -> None:
    topic = apps_without_spark.topic("in", 3)
    settings = {"bootstrap.servers": apps_without_spark.kafka.bootstrap_servers, "client.id": topic}
    broker = Broker(settings, "group")

    def ask() -> list[TopicFacts]:
        return [broker.topic_facts([topic])[topic] for _ in range(20)]

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        while not asked.done():
            hang_up(settings)
    assert [facts.partitions for facts in asked.result()] == [3] * 20
