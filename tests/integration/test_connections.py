"""Connections to the broker that are closed during a request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.core.model.errors import OffsetsLostError
from millstream.core.ports import OffsetRange, TopicFacts
from millstream.drivers.kafka import fetch
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import hang_up
from millstream.drivers.kafka.fetch import KafkaFetcher

from .helpers import Apps

pytestmark = pytest.mark.broker


def test_requests_are_answered_although_their_connections_are_closed(apps_without_spark: Apps) -> None:
    topic = apps_without_spark.topic("in", 3)
    settings = {"bootstrap.servers": apps_without_spark.kafka.bootstrap_servers, "client.id": topic}
    broker = Broker(settings, "group")

    def ask() -> list[TopicFacts]:
        return [broker.topic_facts([topic])[topic] for _ in range(20)]

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask)
        while not future.done():
            hang_up(settings)
    assert [facts.partitions for facts in future.result()] == [3] * 20


def test_a_fetch_does_not_wait_for_planned_records_that_are_gone(
    apps_without_spark: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_QUIET_S", 1.0)
    apps, topic = apps_without_spark, apps_without_spark.topic("in", 1)
    apps.kafka.produce(topic, [("k", "v")] * 3)
    settings = {"bootstrap.servers": apps.kafka.bootstrap_servers}
    planned = OffsetRange(topic, 0, 0, 5)
    with pytest.raises(
        OffsetsLostError, match="ends at offset 3, but offsets up to 5 have been processed or planned"
    ):
        list(KafkaFetcher(settings, "group").fetch(planned))
    skipping = KafkaFetcher(settings, "group", skip_lost=True)
    assert sum(len(records) for records in skipping.fetch(planned)) == 3
