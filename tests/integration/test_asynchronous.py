"""Asynchronous calls on real Spark and a real broker: they continue between micro-batches, and after crashes."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from pathlib import Path

import pytest

import millstream as ms

from .helpers import Apps, committed_records, eventually, lag, values_by_key, written

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEYS = 100


def append_line(journal: Path, value: str) -> None:
    """Append a line about a call to a file that outlives every process; short lines are appended atomically."""
    with open(journal, "ab", buffering=0) as file:
        file.write(f"{value}\n".encode())


def records(count: int) -> list[tuple[str, str]]:
    return [(f"k{n % KEYS}", str(n)) for n in range(count)]


def expected(count: int) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = defaultdict(list)
    for key, value in records(count):
        found[key].append(f"{value}!")
    return dict(found)


def test_calls_overlap_and_results_keep_the_order_of_each_key(apps: Apps, tmp_path: Path) -> None:
    source, sink, journal = apps.topic("in", 2), apps.topic("out", 2), tmp_path / "journal"

    async def enriched(value: str) -> str:
        append_line(journal, f"begin {value}")
        await asyncio.sleep(random.Random(value).random() / 50)
        append_line(journal, f"end {value}")
        return f"{value}!"

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(enriched, max_in_flight=50).to(sink)
    apps.kafka.produce(source, records(5_000))
    running = apps.run(builder.build())
    assert values_by_key(apps.kafka.consume(sink)) == expected(5_000)
    assert lag(apps.kafka, apps.id, source) == 0
    lines = journal.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 10_000  # each call was made once
    open_calls: set[int] = set()
    most_open = 0
    for line in lines:
        event, number = line.split()
        if event == "end":
            open_calls.remove(int(number))
            continue
        assert not any(other % KEYS == int(number) % KEYS for other in open_calls)
        open_calls.add(int(number))
        most_open = max(most_open, len(open_calls))
    assert 50 < most_open <= 100  # two tasks
    assert running.metrics()["processed_records"] == 5_000


def test_a_slow_call_delays_no_other_call_but_holds_back_the_committed_offset(
    apps: Apps, tmp_path: Path
) -> None:
    source, sink, release = apps.topic("in", 1), apps.topic("out", 1), tmp_path / "go on"

    async def call(value: str) -> str:
        append_line(tmp_path / "journal", value)
        while value == "7" and not release.exists():
            await asyncio.sleep(0.05)
        return f"{value}!"

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(call, order="completion", max_in_flight=20).to(sink)
    apps.kafka.produce(source, records(1_000))
    with apps.start(builder.build()) as running:
        eventually(lambda: written(apps.kafka, sink) == 999, "all but the slow one")
        eventually(lambda: apps.kafka.committed(apps.id, source) == {0: 7}, "the offset of the slow one")
        batch = running.status().batch
        eventually(lambda: running.status().batch > batch + 1, "micro-batches to go on")
        (calls,) = running.status().calls.values()
        assert (calls.running, calls.with_async_worker, calls.waiting, calls.parked) == (1, 1, 0, 0)
    # The async worker has ended with its executor, so this call is repeated, and no other.
    release.touch()
    apps.run(builder.build())
    assert written(apps.kafka, sink) == 1_000
    assert lag(apps.kafka, apps.id, source) == 0
    lines = (tmp_path / "journal").read_text().splitlines()
    assert sorted(set(lines), key=int) == [*map(str, range(1_000))]
    assert len(lines) <= 1_001


def test_retries_and_delays_survive_a_restart_and_dead_letters_name_the_error(
    apps: Apps, tmp_path: Path
) -> None:
    source, sink, dead = apps.topic("in", 1), apps.topic("out", 1), apps.topic("dead", 1)
    journal = tmp_path / "journal"

    def call(value: str) -> object:
        append_line(journal, f"{value} {time.time()}")  # noqa: TID251 - the time of an external system
        if value == "bad":
            raise ConnectionError("unreachable")
        done = journal.read_text().count(f"{value} ")
        if value == "later" and done == 1:
            return ms.delay(in_=8_000)
        return f"{value}!"

    builder = ms.StreamsBuilder()
    retry = ms.Retry(initial=200, factor=2, cap=1_000, jitter=0, max_attempts=4)
    answers = builder.stream(source).map_values_async(
        call, retry=retry, on_failure=ms.dead_letter(dead), timeout=5_000
    )
    answers.to(sink)
    apps.kafka.produce(source, [("a", "bad"), ("b", "later"), ("c", "good")])
    with apps.start(builder.build()):
        eventually(lambda: written(apps.kafka, dead) == 1, "the dead letter")
        eventually(lambda: written(apps.kafka, sink) == 1, "the good one")
        assert lag(apps.kafka, apps.id, source) > 0  # the delayed one is not finished
    with apps.start(builder.build()):
        eventually(lambda: written(apps.kafka, sink) == 2, "the delayed one")
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the offset")
    assert values_by_key(apps.kafka.consume(sink)) == {"c": ["good!"], "b": ["later!"]}
    (letter,) = apps.kafka.consume(dead)
    assert letter.value == b"bad"
    assert b"unreachable" in b" ".join(value or b"" for _, value in letter.headers)
    call_times: dict[str, list[float]] = defaultdict(list)
    for line in journal.read_text().splitlines():
        value, moment = line.split()
        call_times[value].append(float(moment))
    assert {value: len(moments) for value, moments in call_times.items()} == {"bad": 4, "later": 2, "good": 1}
    waits = [later - before for before, later in zip(call_times["bad"], call_times["bad"][1:])]
    assert all(wait >= least for wait, least in zip(waits, (0.2, 0.4, 0.8), strict=True))
    assert call_times["later"][1] - call_times["later"][0] >= 8


def test_exactly_once_sends_each_call_result_once(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)

    async def enriched(value: str) -> str:
        await asyncio.sleep(random.Random(value).random() / 50)
        return f"{value}!"

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(enriched, max_in_flight=50).to(sink)
    apps.kafka.produce(source, records(3_000))
    apps.run(builder.build(), processing_guarantee="exactly_once")
    assert values_by_key(committed_records(apps.kafka, sink)) == expected(3_000)
    assert lag(apps.kafka, apps.id, source) <= 2 * 2  # markers of transactions count as offsets


def test_a_full_task_after_the_shuffle_stops_the_reading_before_it(apps: Apps, tmp_path: Path) -> None:
    source, sink, release = apps.topic("in", 2), apps.topic("out", 1), tmp_path / "go on"

    async def call(value: str) -> str:
        while not release.exists():
            await asyncio.sleep(0.1)
        return value

    builder = ms.StreamsBuilder()
    shuffled = builder.stream(source).repartition(name="again", partitions=1)
    shuffled.map_values_async(call, order="completion").to(sink)
    apps.kafka.produce(source, [(f"k{n % 1_000}", str(n)) for n in range(40_000)])
    with apps.start(builder.build(), max_batch_records=4_000) as running:
        # The async worker has 10,000 calls. When half as many are parked, the task reads nothing more.
        eventually(lambda: running.metrics().get("calls_parked", 0) >= 4_990, "a full task")
        batch = running.status().batch
        eventually(lambda: running.status().batch > batch + 2, "micro-batches to go on")
        assert running.metrics()["read_records"] <= 15_000
        release.touch()
        eventually(lambda: written(apps.kafka, sink) == 40_000, "all results")
