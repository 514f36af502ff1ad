"""Calls to the outside world on real Spark and a real broker: they go on between micro-batches, and over crashes."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import pytest

import penstock as ps

from .helpers import Apps, lag, values_by_key

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEYS = 100


def journaled(journal: Path, value: str) -> None:
    """Note the begin or the end of a call, in a file that outlives every process; short lines are appended whole."""
    with open(journal, "ab", buffering=0) as file:
        file.write(f"{value}\n".encode())


def records(count: int) -> list[tuple[str, str]]:
    return [(f"k{n % KEYS}", str(n)) for n in range(count)]


def expected(count: int) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = defaultdict(list)
    for key, value in records(count):
        found[key].append(f"{value}!")
    return dict(found)


def test_results_come_in_the_order_of_their_key_and_calls_overlap(apps: Apps, tmp_path: Path) -> None:
    source, sink, journal = apps.topic("in", 2), apps.topic("out", 2), tmp_path / "journal"

    async def enriched(value: str) -> str:
        journaled(journal, f"begin {value}")
        await asyncio.sleep(random.Random(value).random() / 50)
        journaled(journal, f"end {value}")
        return f"{value}!"

    builder = ps.StreamsBuilder()
    builder.stream(source).map_values_async(enriched, max_in_flight=50).to(sink)
    apps.kafka.produce(source, records(5_000))
    running = apps.run(builder.build())
    assert values_by_key(apps.kafka.consume(sink)) == expected(5_000)
    assert lag(apps.kafka, apps.id, source) == 0
    lines = journal.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 10_000  # each call was made once
    open_calls: set[int] = set()
    most = 0
    for line in lines:
        what, number = line.split()
        if what == "end":
            open_calls.remove(int(number))
            continue
        assert not any(other % KEYS == int(number) % KEYS for other in open_calls)
        open_calls.add(int(number))
        most = max(most, len(open_calls))
    assert 50 < most <= 100  # two tasks
    assert running.metrics()["processed_records"] == 5_000
