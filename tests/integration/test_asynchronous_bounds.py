"""A task with asynchronous calls keeps a bounded number of records, however many wait in its topics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import millstream as ms

from .helpers import Apps, eventually, lag, values_by_key

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS = 30_000
BATCH = 4_000
HANDED_OVER = 10_000
PARKED = 10_000
"""The number of parked records at which a task stops reading its topic (decision 0050)."""


@pytest.mark.soak
def test_intake_stops_at_the_limit_of_in_flight_records(apps: Apps, tmp_path: Path) -> None:
    source, sink, release = apps.topic("in", 1), apps.topic("out", 1), tmp_path / "go on"

    async def call(value: str) -> str:
        while not release.exists():
            await asyncio.sleep(0.05)
        return f"{value}!"

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(call).to(sink)
    apps.kafka.produce(source, [(f"k{n}", str(n)) for n in range(RECORDS)])
    with apps.start(builder.build(), max_batch_records=BATCH) as running:
        most_in_memory = 0

        def measured() -> int:
            """Update the maximum of calls in memory; return the number of records read."""
            nonlocal most_in_memory
            calls = running.status().calls.values()
            most_in_memory = max(
                most_in_memory,
                sum(
                    operator.with_async_worker + operator.waiting + operator.parked + operator.held
                    for operator in calls
                ),
            )
            return running.metrics()["read_records"]

        def intake_stopped() -> bool:
            before, batch = measured(), running.status().batch
            eventually(lambda: measured() and running.status().batch > batch + 3, "micro-batches to go on")
            return before > 0 and measured() == before

        eventually(intake_stopped, "the topic to be left alone", within_s=120)
        assert HANDED_OVER < most_in_memory == measured() <= HANDED_OVER + PARKED + BATCH
        release.touch()
        eventually(lambda: measured() and lag(apps.kafka, apps.id, source) == 0, "the rest", within_s=120)
        assert most_in_memory <= HANDED_OVER + PARKED + BATCH
    assert values_by_key(apps.kafka.consume(sink)) == {f"k{n}": [f"{n}!"] for n in range(RECORDS)}
