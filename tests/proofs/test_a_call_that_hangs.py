"""Proof 5: a call that hangs delays no other call, no committed offset passes its record, and a restart repeats only this call."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

import millstream as ms
from integration.helpers import Apps, eventually, lag

from .journal import BEGIN, END, Journal, lines_of, read
from .results import write_result
from .runs import Sampler, among, arrivals, calls_of, clocked_topic, has, now_ms, ratio, times_ms
from .sizes import sized

pytestmark = [pytest.mark.alone, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(sized(600, 900))]

RECORDS = sized(2_000, 50_000)
KEYS = sized(1_000, 10_000)
HANGS_S = sized(5, 60)
CALL_S = 0.01
WARM_UP, CLEAN, HANGING = (range(n, n + RECORDS) for n in range(0, 3 * RECORDS, RECORDS))
STUCK = HANGING[100]


def records(numbers: range) -> list[tuple[str, str]]:
    """Return records; the one that hangs has its own key, because other records of its key would wait for it."""
    return [("stuck" if number == STUCK else f"k{number % KEYS}", str(number)) for number in numbers]


def offset_of(apps: Apps, topic: str, number: int) -> tuple[int, int]:
    (found,) = (each for each in apps.kafka.consume(topic) if each.value == str(number).encode())
    return found.partition, found.offset


def seconds(apps: Apps, sink: str, journal: Path, numbers: range) -> float:
    """Return the time from the first call of these records to the arrival of the last result, except the one that hangs."""
    first = times_ms(lines_of(among(read(journal), numbers), BEGIN)).min()
    results = [
        each for each in arrivals(apps.kafka, sink) if int(each.value) in numbers and int(each.value) != STUCK
    ]
    last = max(each.timestamp_ms for each in results)
    return float(last - first) / 1000


def test_a_call_that_hangs_delays_no_other_call(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("in", 2), clocked_topic(apps, "out")
    path, release_file = tmp_path / "journal", tmp_path / "go on"
    journal = Journal(path)

    async def call(value: str) -> str:
        number = int(value)
        journal.begin(number)
        await asyncio.sleep(CALL_S)
        while number == STUCK and not release_file.exists():
            await asyncio.sleep(0.05)
        journal.end(number)
        return value

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(call).to(sink)
    topology = builder.build()
    with apps.start(topology) as running:

        def sample_offsets() -> tuple[int, dict[int, int]]:
            return running.status().batch, apps.kafka.committed(apps.id, source)

        def run(numbers: range, results: int) -> None:
            apps.kafka.produce(source, records(numbers))
            eventually(partial(has, apps, sink, results), "the results", within_s=sized(120, 240))

        run(WARM_UP, WARM_UP.stop)
        with Sampler(sample_offsets, every_s=0.2) as sampler:
            run(CLEAN, CLEAN.stop)
            run(HANGING, HANGING.stop - 1)
            partition, stuck = offset_of(apps, source, STUCK)
            expected_offsets = {**apps.kafka.end_offsets(source), partition: stuck}
            eventually(lambda: apps.kafka.committed(apps.id, source) == expected_offsets, "the offsets")
            begin_ms = times_ms(lines_of(among(read(path), range(STUCK, STUCK + 1)), BEGIN))[0]
            eventually(
                lambda: now_ms() > begin_ms + HANGS_S * 1000, "the time it hangs", within_s=HANGS_S + 10
            )
            assert (calls_of(running, "running"), calls_of(running, "with_async_worker")) == (1, 1)
            assert apps.kafka.committed(apps.id, source) == expected_offsets
    assert all(offsets.get(partition, 0) <= stuck for _, offsets in sampler.values)
    meanwhile = [sample.value[0] for sample in sampler.samples if sample.asked_ms > begin_ms]
    assert meanwhile == sorted(meanwhile)
    commits = len(set(meanwhile))
    assert commits >= sized(
        3, 20
    )  # micro-batches continue, about one per second when there is nothing else to do
    before = read(path)
    assert len(lines_of(before, BEGIN)) == HANGING.stop  # each record was called once
    # The application restarts on another host, without the calls that ran on the first one.
    os.kill(int(before["pid"][before["number"] == STUCK][0]), signal.SIGKILL)
    with apps.start(topology):
        eventually(lambda: len(read(path, len(before))) > 0, "the call to be made again")
        release_file.touch()
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the offset")
    after_restart = read(path, len(before))
    assert after_restart["number"].tolist() == [STUCK, STUCK]
    assert after_restart["kind"].tolist() == [BEGIN, END]
    assert sorted(int(each.value) for each in arrivals(apps.kafka, sink)) == [*range(HANGING.stop)]
    clean, hanging = (seconds(apps, sink, path, each) for each in (CLEAN, HANGING))
    write_result(
        "5-a-call-that-hangs",
        records=RECORDS,
        hangs_s=HANGS_S,
        time_of_the_rest_against_clean=ratio(hanging, clean),
        micro_batches_meanwhile=commits,
        calls_after_the_restart=1,
    )
    # A short run has few micro-batches, so one more makes a large difference.
    assert hanging <= 1.2 * clean + sized(5, 0)
