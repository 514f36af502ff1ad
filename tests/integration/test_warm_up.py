"""The warm-up of a standby: a query that ends by itself, sends nothing, and continues its own checkpoint."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from millstream.core.topology.internal import DRIVER_CONFIG, driver_topic
from millstream.edge.application.warm_up import start_warm_up
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.settings.settings_loading import settings_from

from .helpers import Apps

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_warm_ups_run_one_micro_batch_each_and_leave_nothing_on_the_broker(
    apps: Apps, spark: SparkSession, guarantee: str
) -> None:
    settings = settings_from(
        {"bootstrap_servers": apps.kafka.bootstrap_servers, "processing_guarantee": guarantee}
    )
    clients = Clients(settings, apps.id)
    broker, topic = clients.broker(), driver_topic(apps.id)
    broker.ensure_topic(topic, 1, DRIVER_CONFIG, 1)
    for batch in range(2):
        query = start_warm_up(spark, clients)
        assert query.awaitTermination(120)
        assert [progress["batchId"] for progress in query.recentProgress] == [batch]
    assert [name for name in broker.partition_counts() if name.startswith(apps.id)] == [topic]
    assert broker.end_offsets({topic: 1}) == {topic: {0: 0}}
