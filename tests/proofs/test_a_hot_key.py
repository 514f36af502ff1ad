"""Proof 6: a key with more records than its calls can process delays no other key, and its records take bounded memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

import millstream as ms
from integration.helpers import Apps, eventually, lag

from .journal import Journal, read
from .results import write_result
from .runs import Sampler, arrivals, calls_of, clocked_topic, has, median, now_ms, ratio
from .sizes import sized

pytestmark = [pytest.mark.alone, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(sized(600, 900))]

CALL_S = 0.010
PER_SECOND = 800
"""Records per second. A key allows 100 calls of 10 ms per second; the hottest key has 18 % of all records."""
SECONDS = sized(5, 90)
RECORDS = PER_SECOND * SECONDS
KEYS = 1_000
WITHOUT_HOT_KEY, WITH_HOT_KEY = (range(n, n + RECORDS) for n in (0, RECORDS))
WARM_UP = range(2 * RECORDS, 2 * RECORDS + PER_SECOND)
HANDED_OVER = 10_000
"""The documented limit of records with the async worker."""
MEGABYTE = 1 << 20


def zipf_keys() -> list[int]:
    """Draw the keys of a run; 0 is the hottest."""
    weights = [*accumulate(1 / (rank + 1) ** 1.1 for rank in range(KEYS))]
    return random.Random(6).choices(range(KEYS), cum_weights=weights, k=RECORDS)


KEY_OF = zipf_keys()


def is_hot(number: int) -> bool:
    return KEY_OF[number % RECORDS] == 0


def send(apps: Apps, topic: str, numbers: Sequence[int]) -> dict[int, float]:
    """Send each record when it is due; return the due times, so that delays of the sender count as waiting."""
    producer = Producer({"bootstrap.servers": apps.kafka.bootstrap_servers, "linger.ms": 2})
    due_times: dict[int, float] = {}
    begin = now_ms()
    for number in numbers:
        due_ms = due_times[number] = begin + number % RECORDS * 1000 / PER_SECOND
        while (remaining_ms := due_ms - now_ms()) > 0:
            producer.poll(remaining_ms / 1000)
        producer.produce(topic, str(number), f"k{KEY_OF[number % RECORDS]}", partition=0)
    assert producer.flush(30) == 0
    return due_times


def memory(async_worker: int) -> tuple[int, int]:
    """Return the unshared memory of an async worker and of the largest of Spark's Python workers, in bytes."""
    workers = [0]
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # some end at any time
            if "python" in child.name() and child.pid != async_worker:
                workers.append(child.memory_full_info().uss)
    return psutil.Process(async_worker).memory_full_info().uss, max(workers)


def test_a_hot_key_delays_no_other_key_and_takes_bounded_memory(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("in", 1), clocked_topic(apps, "out")
    path = tmp_path / "journal"
    journal = Journal(path)

    async def call(value: str) -> str:
        journal.begin(int(value))
        await asyncio.sleep(CALL_S)
        journal.end(int(value))
        return value

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(call).to(sink)
    with apps.start(builder.build()) as running:

        def sample_calls_and_memory() -> tuple[int, ...]:
            kinds = ("with_async_worker", "parked", "held", "waiting")
            return (*(calls_of(running, kind) for kind in kinds), *memory(async_worker))

        cold = {
            run: [number for number in run if not is_hot(number)]
            for run in (WARM_UP, WITHOUT_HOT_KEY, WITH_HOT_KEY)
        }
        send(apps, source, cold[WARM_UP])
        eventually(partial(has, apps, sink, len(cold[WARM_UP])), "the results", within_s=60)
        async_worker = int(read(path)["pid"][0])
        with Sampler(sample_calls_and_memory, every_s=0.5) as before:
            due_times = send(apps, source, cold[WITHOUT_HOT_KEY])
            eventually(
                partial(has, apps, sink, len(cold[WARM_UP]) + len(cold[WITHOUT_HOT_KEY])), "the results"
            )
        with Sampler(sample_calls_and_memory, every_s=0.5) as sampler:
            due_times |= send(apps, source, WITH_HOT_KEY)
            unfinished = calls_of(running, "parked") + calls_of(running, "with_async_worker")
            eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the hot key", within_s=60 + SECONDS)
    arrival_ms = {int(each.value): each.timestamp_ms for each in arrivals(apps.kafka, sink)}
    assert len(arrival_ms) == len(cold[WARM_UP]) + len(cold[WITHOUT_HOT_KEY]) + RECORDS
    without, with_hot = (
        median(arrival_ms[n] - due_times[n] for n in cold[run]) for run in (WITHOUT_HOT_KEY, WITH_HOT_KEY)
    )
    most_with_async_worker, most_parked = (
        max(values[index] for values in sampler.values) for index in (0, 1)
    )
    growth = [
        max(values[index] for values in sampler.values) - max(sample[index] for sample in before.values)
        for index in (4, 5)
    ]
    hot = sum(map(is_hot, WITH_HOT_KEY))
    write_result(
        "6-a-hot-key",
        records=RECORDS,
        seconds=SECONDS,
        of_the_hot_key=hot,
        unfinished_when_the_last_was_sent=unfinished,
        cold_median_against_without=ratio(with_hot, without),
        most_with_async_worker=most_with_async_worker,
        most_parked=most_parked,
        async_worker_grew_mb=round(growth[0] / MEGABYTE, 1),
        worker_grew_mb=round(growth[1] / MEGABYTE, 1),
    )
    assert most_with_async_worker <= HANDED_OVER
    assert max(growth) < 64 * MEGABYTE
    assert with_hot <= sized(4, 2) * without
