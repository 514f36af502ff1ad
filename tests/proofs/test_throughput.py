"""Proof 4: results per second through Kafka and Spark, with calls of 10 ms, one partition, and order by key.

The broker times the results, and the start is left out. ``python -m bench --only calls-100,calls-1000`` measures Confluent's Parallel
Consumer on the same broker.
"""

from __future__ import annotations

import asyncio

import pytest
from bench.calls import rate

import millstream as ms
from integration.helpers import Apps, lag

from .results import write_result
from .runs import arrivals, clocked_topic
from .sizes import FULL, sized

pytestmark = [
    pytest.mark.alone,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(sized(300, 1_200)),
]

KEYS = 10_000
RUNS = [(100, 150_000, 5_000), (1_000, 1_000_000, 20_000)] if FULL else [(1_000, 20_000, 500)]
"""Calls in flight, records, and the required results per second; serial calls would reach 100."""


async def answered(value: str) -> str:
    await asyncio.sleep(0.010)
    return value


@pytest.mark.parametrize(("in_flight", "records", "least"), RUNS)
def test_calls_of_ten_milliseconds_reach_the_required_throughput(
    apps: Apps, in_flight: int, records: int, least: int
) -> None:
    source, sink = apps.topic("in", 1), clocked_topic(apps, "out")
    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(answered, max_in_flight=in_flight).to(sink)
    apps.kafka.produce(source, ((f"k{number % KEYS}", str(number)) for number in range(records)))
    apps.run(builder.build())
    assert lag(apps.kafka, apps.id, source) == 0
    found = arrivals(apps.kafka, sink)
    seen: dict[int, int] = {}
    for arrival in found:
        number = int(arrival.value)
        assert seen.get(number % KEYS, -1) < number  # in order within the key, each once
        seen[number % KEYS] = number
    assert len(found) == records
    per_second = round(rate([arrival.timestamp_ms for arrival in found]))
    write_result(f"throughput-{in_flight}", in_flight=in_flight, records=records, results_per_s=per_second)
    assert per_second >= least
