"""Stores of every kind on Spark return the same as in `TopologyTestDriver`."""

from __future__ import annotations

import random
import shutil

import pytest

import millstream as ms

from .helpers import Apps
from .topologies import EveryStore, with_processor

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_all_kinds_of_stores_match_the_test_driver_even_if_their_local_state_is_deleted(apps: Apps) -> None:
    rng, now = random.Random(11), 1_700_000_000_000
    records = []
    for number in range(60):
        now += rng.choice([0, 500, 20_000])
        late = rng.choice([0, 0, 10_000, 150_000])
        records.append((rng.choice("abcde"), str(number), now - late))
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    topology = with_processor(EveryStore, source, sink, *EveryStore.stores)
    apps.kafka.produce(source, records[:35])
    apps.run(topology, max_batch_records=9)
    shutil.rmtree(apps.local_state)
    apps.kafka.produce(source, records[35:])
    apps.run(topology, max_batch_records=9)
    with ms.testing.TopologyTestDriver(topology) as driver:
        for key, value, timestamp in records:
            driver.pipe(source, key, value, timestamp)
        expected = [record.value for record in driver.read(sink)]
    assert [(r.value or b"").decode() for r in apps.kafka.consume(sink)] == expected
