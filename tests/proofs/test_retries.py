"""Proof 7: retries run when due, as often as configured, and a record that fails is finished when its dead letter is written."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

import millstream as ms
from integration.helpers import Apps, eventually, lag, written

from .journal import BEGIN, FAILED, Journal, Lines, lines_of, read
from .results import write_result
from .runs import Sampler, has, times_ms
from .sizes import sized

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(sized(600, 900))]

FAILING = sized(60, 2_000)
"""Records whose calls always fail."""
LATER = sized(500, 10_000)
"""Records that wait for a long time during the test."""
RETRY = ms.Retry(initial=200, factor=2, cap=5_000, jitter=0, max_attempts=sized(5, 8))
ATTEMPTS = sized(5, 8)
A_LONG_TIME_MS = 3_600_000


class MicroBatch(NamedTuple):
    """When a micro-batch of Spark began and ended, ms since the epoch."""

    begin: float
    end: float


def last_micro_batch(spark: SparkSession) -> MicroBatch | None:
    """Return the last micro-batch according to Spark's progress."""
    progress = [query.lastProgress for query in spark.streams.active]
    if not progress or progress[0] is None:
        return None
    begin = datetime.fromisoformat(progress[0]["timestamp"].replace("Z", "+00:00")).timestamp() * 1000
    return MicroBatch(begin, begin + progress[0]["durationMs"]["triggerExecution"])


def waits(lines: Lines) -> tuple[np.ndarray, np.ndarray]:
    """Return when each attempt but the first was due, according to the attempt before it, and when it began."""
    due: list[float] = []
    began: list[float] = []
    for number in range(FAILING):
        of_record = lines[lines["number"] == number]
        failures, begins = times_ms(lines_of(of_record, FAILED)), times_ms(lines_of(of_record, BEGIN))
        due += [
            failed_ms + RETRY.wait_ms(attempt, "") for attempt, failed_ms in enumerate(failures[:-1], start=1)
        ]
        began += [*begins[1:]]
    return np.array(due), np.array(began)


def later_than_a_micro_batch(due: np.ndarray, began: np.ndarray, batches: Sequence[MicroBatch]) -> np.ndarray:
    """Return how late each attempt was, less the longest micro-batch that ran between its due time and its begin."""
    begins, ends = np.array([b.begin for b in batches]), np.array([b.end for b in batches])
    took = ends - begins
    longest = np.array(
        [
            took[(ends >= due_ms) & (begins <= until)].max(initial=0)
            for due_ms, until in zip(due, began, strict=True)
        ]
    )
    return began - due - longest


@pytest.mark.alone  # it measures delays
def test_retries_run_when_due_and_then_a_dead_letter_is_written(
    apps: Apps, spark: SparkSession, tmp_path: Path
) -> None:
    source, sink, dead = apps.topic("in", 1), apps.topic("out", 1), apps.topic("dead", 1)
    path = tmp_path / "journal"
    journal = Journal(path)

    async def call(value: str) -> object:
        number = int(value)
        if number >= FAILING:
            return ms.delay(in_=A_LONG_TIME_MS)
        journal.begin(number)
        await asyncio.sleep(0.005)
        journal.failed(number)
        raise ConnectionError(f"unreachable for {number}")

    builder = ms.StreamsBuilder()
    calls = builder.stream(source).map_values_async(call, retry=RETRY, on_failure=ms.dead_letter(dead))
    calls.to(sink)
    with apps.start(builder.build()) as running:
        apps.kafka.produce(source, [(f"k{n}", str(n)) for n in range(FAILING, FAILING + LATER)])
        eventually(
            lambda: running.metrics().get("calls_waiting", 0) == LATER, "those that wait", within_s=120
        )
        with Sampler(partial(last_micro_batch, spark), every_s=0.05) as sampler:
            apps.kafka.produce(source, [(f"k{n}", str(n)) for n in range(FAILING)])
            eventually(partial(has, apps, dead, FAILING), "the letters", within_s=sized(90, 240))
            assert running.metrics()["calls_waiting"] == LATER
    lines = read(path)
    attempts = Counter(lines_of(lines, BEGIN)["number"].tolist())
    assert attempts == dict.fromkeys(range(FAILING), ATTEMPTS)
    due, began = waits(lines)
    batches = sorted({each for each in sampler.values if each is not None})
    beyond = later_than_a_micro_batch(due, began, batches)
    late = began - due
    write_result(
        "7-retries",
        records=FAILING,
        attempts_of_each=ATTEMPTS,
        waiting_meanwhile=LATER,
        retries=len(due),
        early=int((late < 0).sum()),
        late_ms_median=round(float(np.median(late))),
        late_ms_most=round(float(late.max())),
        micro_batch_ms_median=round(float(np.median([each.end - each.begin for each in batches]))),
        later_than_a_micro_batch_and_50_ms=int((beyond > 50).sum()),
    )
    assert late.min() >= 0
    letters = apps.kafka.consume(dead)
    sent = {each.value: each.offset for each in apps.kafka.consume(source)}
    for letter in letters:
        headers = {name: (value or b"").decode() for name, value in letter.headers}
        number = int(letter.value or b"")
        assert headers["millstream.error.error"] == f"ConnectionError: unreachable for {number}"
        assert headers["millstream.error.attempts"] == str(ATTEMPTS)
        assert headers["millstream.error.topic"] == source
        assert int(headers["millstream.error.offset"]) == sent[letter.value]
    assert sorted(int(letter.value or b"") for letter in letters) == [*range(FAILING)]
    # In a short run, one micro-batch that a busy machine delays affects many retries.
    assert (beyond > sized(1_000, 50)).sum() == 0


def set_largest_record(apps: Apps, topic: str, size: int) -> None:
    """Limit the size of a topic's records, in bytes."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": apps.kafka.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def test_a_record_is_not_finished_while_its_dead_letter_cannot_be_written(apps: Apps, tmp_path: Path) -> None:
    source, sink, dead = apps.topic("in", 1), apps.topic("out", 1), apps.topic("dead", 1)
    count, failing = 200, range(20, 200, 20)

    async def call(value: str) -> str:
        await asyncio.sleep(0.005)
        if int(value) in failing:
            raise ConnectionError("unreachable")
        return value

    builder = ms.StreamsBuilder()
    retry = ms.Retry(initial=50, jitter=0, max_attempts=2)
    calls = builder.stream(source).map_values_async(call, retry=retry, on_failure=ms.dead_letter(dead))
    calls.to(sink)
    topology = builder.build()
    set_largest_record(apps, dead, 100)  # a letter is larger
    apps.kafka.produce(source, [(f"k{n}", str(n)) for n in range(count)])
    with pytest.raises(ms.errors.ProductionError, match=f"a record for topic '{dead}' was not accepted"):
        apps.start(topology).await_termination(60)
    assert written(apps.kafka, dead) == 0
    assert lag(apps.kafka, apps.id, source) >= count - failing.start
    set_largest_record(apps, dead, 1_000_000)
    with apps.start(topology):
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the offsets")
    letters = [int(letter.value or b"") for letter in apps.kafka.consume(dead)]
    results = {int(result.value or b"") for result in apps.kafka.consume(sink)}
    write_result("7-retries-without-a-topic", records=count, letters=len(letters), results=len(results))
    assert sorted(letters) == [*failing]
    assert results == set(range(count)) - set(failing)
