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
"""What a task parks before its topic is read no further (decision 0050)."""


@pytest.mark.soak
def test_what_cannot_be_called_yet_stays_in_its_topic(apps: Apps, tmp_path: Path) -> None:
    source, sink, go_on = apps.topic("in", 1), apps.topic("out", 1), tmp_path / "go on"

    async def call(value: str) -> str:
        while not go_on.exists():
            await asyncio.sleep(0.05)
        return f"{value}!"

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(call).to(sink)
    apps.kafka.produce(source, [(f"k{n}", str(n)) for n in range(RECORDS)])
    with apps.start(builder.build(), max_batch_records=BATCH) as running:
        most = 0

        def taken() -> int:
            """Update the maximum of calls in memory; return the number of records read."""
            nonlocal most
            calls = running.status().calls.values()
            most = max(
                most,
                sum(
                    operator.with_async_worker + operator.waiting + operator.parked + operator.held
                    for operator in calls
                ),
            )
            return running.metrics()["read_records"]

        def read_no_further() -> bool:
            before, batch = taken(), running.status().batch
            eventually(lambda: taken() and running.status().batch > batch + 3, "micro-batches to go on")
            return before > 0 and taken() == before

        eventually(read_no_further, "the topic to be left alone", within_s=120)
        assert HANDED_OVER < most == taken() <= HANDED_OVER + PARKED + BATCH
        go_on.touch()
        eventually(lambda: taken() and lag(apps.kafka, apps.id, source) == 0, "the rest", within_s=120)
        assert most <= HANDED_OVER + PARKED + BATCH
    assert values_by_key(apps.kafka.consume(sink)) == {f"k{n}": [f"{n}!"] for n in range(RECORDS)}
