"""Several threads per task on real Spark and a real broker: they run concurrently, with the results of one thread (KIP-408)."""

from __future__ import annotations

from collections import Counter

import pytest

import millstream as ms
from unit.helpers import Meeting

from .helpers import Apps, lag

pytestmark = [pytest.mark.broker, pytest.mark.spark]

THREADS = 4
ENDS = "7"
"""A value that ends the thread that processes it."""


def ending(value: str) -> str:
    if value == f"{ENDS}!":
        raise SystemExit
    return value


def test_four_threads_run_concurrently_with_the_results_of_one(apps: Apps) -> None:
    """The functions before and after a shuffle return only when four threads have been in them at the same time."""
    source, mapped, counted = (apps.topic(name, 1) for name in ("in", "mapped", "counted"))
    records = [(f"k{n % 40}", str(n % 200)) for n in range(2_000)]
    builder = ms.StreamsBuilder()
    met = builder.stream(source).map_values(Meeting(THREADS)).map_values(ending)
    met.to(mapped)
    repartitioned = met.select_key(lambda key, value: f"{key} {value}").repartition(partitions=1)
    counts = repartitioned.map_values(Meeting(THREADS)).group_by_key().count()
    counts.to_stream().to(counted, value=ms.serdes.json)
    apps.kafka.produce(source, records)

    running = apps.run(builder.build(), num_threads_per_task=THREADS, on_process_error="skip")

    remaining = [(key, f"{value}!") for key, value in records if value != ENDS]
    assert in_order(apps, mapped) == remaining
    seen: Counter[str] = Counter()
    expected = []
    for key, value in remaining:
        seen[f"{key} {value}"] += 1
        expected.append((f"{key} {value}", str(seen[f"{key} {value}"])))
    assert in_order(apps, counted) == expected
    assert lag(apps.kafka, apps.id, source) == 0
    status = running.status().threads
    assert {task: (threads.threads, min(threads.executed) > 0) for task, threads in status.items()} == {
        "0_0": (THREADS, True),
        "1_0": (THREADS, True),
    }
    assert (status["0_0"].ended, status["1_0"].ended) == (2 * 10, 0)
    metrics = running.metrics()
    assert (metrics["threads"], metrics["thread_records"]) == (2 * THREADS, 2_000 + 1_990)
    assert (metrics["threads_ended"], metrics["dropped_records"]) == (20, 10)


def test_concurrent_tasks_share_the_limit_of_threads(apps: Apps) -> None:
    source = apps.topic("in", 10)
    apps.kafka.produce(source, [(f"k{n}", "v") for n in range(200)])
    builder = ms.StreamsBuilder()
    builder.stream(source).map_values(ending).group_by_key().count(store="counts")
    slots = 2

    running = apps.run(builder.build(), num_threads_per_task=THREADS, num_stream_threads=5)

    threads = sorted(status.threads for status in running.status().threads.values())
    assert sum(threads[-slots:]) == 5  # two tasks at once: three threads and two
    assert len(threads) == 10


def in_order(apps: Apps, topic: str) -> list[tuple[str, str]]:
    """Return the keys and values of a topic with one partition, as text."""
    found = [(record.key, record.value) for record in apps.kafka.consume(topic)]
    return [(key.decode(), value.decode()) for key, value in found if key is not None and value is not None]
