"""On real Spark, the writes and forwards of calls are atomic, in program order, and equal to those of a serial run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest

import millstream as ms

from .helpers import Apps, committed_records, eventually, lag, latest, values_by_key

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEYS = 1_000
ROUNDS = 2
PRIME = 10_007


def records() -> list[tuple[str, str]]:
    """Return a number for each key in each round."""
    return [(f"k{n % KEYS}", str(n)) for n in range(KEYS * ROUNDS)]


def serial_results() -> tuple[dict[str | None, list[str]], dict[str | None, int]]:
    """Return the forwarded values and the final balance of each key."""
    forwarded: dict[str | None, list[str]] = defaultdict(list)
    balances: dict[str | None, int] = defaultdict(int)
    for key, value in records():
        balances[key] += int(value)
        forwarded[key].append(f"{value} added: {balances[key]}")
        balances[key] = balances[key] * 2 % PRIME
        forwarded[key].append(f"{value} doubled: {balances[key]}")
    return dict(forwarded), dict(balances)


def test_effects_equal_a_serial_run_despite_overlaps_failures_and_a_killed_async_worker(
    apps: Apps, tmp_path: Path
) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    release, process_id = tmp_path / "go on", tmp_path / "async-worker"
    last_round = KEYS * (ROUNDS - 1)

    async def move(record: ms.Record[str, str], context: ms.CallContext) -> None:
        balances, number = context.state_store("balances"), int(record.value)
        balances.put(record.key, (balances.get(record.key) or 0) + number)
        context.forward(record.with_value(f"{number} added: {balances.get(record.key)}"))
        await asyncio.sleep(number % 7 / 1_000)
        if number >= last_round and not release.exists():
            if not process_id.exists():
                process_id.write_text(str(os.getpid()))
            await asyncio.Future()  # never completes; ends with its async worker
        if number % 10 == 0 and context.attempt == 1:
            raise ConnectionError("unreachable")
        balances.put(record.key, balances.get(record.key) * 2 % PRIME)
        context.forward(record.with_value(f"{number} doubled: {balances.get(record.key)}"))

    builder = ms.StreamsBuilder()
    builder.add_state_store(
        ms.stores.key_value("balances", ms.serdes.string, ms.serdes.int64, changelog="kafka")
    )
    stream = builder.stream(source).process_async(
        move, stores=["balances"], max_in_flight=KEYS, retry=ms.Retry(initial=50, jitter=0)
    )
    stream.to(sink, key=ms.serdes.string, value=ms.serdes.string)
    topology = builder.build()
    apps.kafka.produce(source, records())
    with apps.start(topology, processing_guarantee="exactly_once") as running:
        eventually(
            lambda: running.metrics().get("calls_running") == KEYS,
            "the calls of the last round",
            within_s=120,
        )
        release.touch()
        os.kill(int(process_id.read_text()), signal.SIGKILL)
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "all results", within_s=120)
        assert running.metrics()["calls_lost"] == KEYS
    forwarded, balances = serial_results()
    assert values_by_key(committed_records(apps.kafka, sink)) == forwarded
    changes = committed_records(apps.kafka, f"{apps.id}-balances-changelog")
    assert latest(changes, ms.serdes.int64) == balances
