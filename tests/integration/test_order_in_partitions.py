"""Functions before Spark's shuffle see the records of a partition in order, and the partition time.

A micro-batch has 40,000 records of one partition. If records of a partition could be split, they would go to several readers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError
from proofs.sizes import sized

from .helpers import Apps, committed_records, lag

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS = 40_000
KEYS = 20
OWN_TIME_INTERVAL = 7
"""One record in this many has its own time; the others get the partition time."""


class CallRecorder:
    """Appends each value to a file, which lists the calls of all processes in order."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, value: str) -> str:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{value}\n".encode())
        finally:
            os.close(file)
        return value


@pytest.mark.parametrize("threads", [1, 4])
def test_a_function_sees_the_records_of_a_key_in_order(apps: Apps, tmp_path: Path, threads: int) -> None:
    """An output and a re-keying operator follow the function; it is still called only once per record."""
    source, out, counted = (apps.topic(name, 1) for name in ("in", "out", "counted"))
    calls = tmp_path / "calls"
    builder = ms.StreamsBuilder()
    recorded = builder.stream(source).map_values(CallRecorder(calls))
    recorded.to(out)
    counts = recorded.group_by(lambda key, value: key).count(store="counts")
    counts.to_stream().to(counted, value=ms.serdes.int64)
    apps.kafka.produce(source, [(f"k{n % KEYS}", str(n)) for n in range(RECORDS)])

    apps.run(builder.build(), num_threads_per_task=threads, max_batch_records=RECORDS)

    called = [int(line) for line in calls.read_text().splitlines()]
    assert sorted(called) == list(range(RECORDS))
    if threads == 1:
        assert called == sorted(called)
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in called:
        by_key[number % KEYS].append(number)
    assert [key for key, numbers in by_key.items() if numbers != sorted(numbers)] == []
    assert [int(record.value or b"") for record in apps.kafka.consume(out)] == list(range(RECORDS))


def extract_timestamp(record: Any, partition_time: int) -> int:
    """Extract timestamps as in ``docs/concepts/time.md``."""
    return int(record.value.split(":")[0]) if ":" in record.value else partition_time


class FailsOnce:
    """Fails at a certain value as long as a file exists."""

    def __init__(self, value: str, path: Path) -> None:
        self.value = value
        self.path = str(path)

    def __call__(self, value: str) -> str:
        if value == self.value and os.path.exists(self.path):
            raise ValueError("fails once")
        return value


@pytest.mark.parametrize("guarantee", sized(["exactly_once"], ["at_least_once", "exactly_once"]))
def test_partition_time_is_kept_across_readers_micro_batches_failures_and_restarts(
    apps: Apps, tmp_path: Path, guarantee: str
) -> None:
    """The largest time comes first, so a process that lost the partition time would assign smaller times, or none."""
    source, out, again = (apps.topic(name, 1) for name in ("in", "out", "again"))
    values = [f"{9_000 - n % 50}:{n}" if n % OWN_TIME_INTERVAL == 0 else str(n) for n in range(RECORDS)]
    expected: list[int] = []
    time = -1
    for value in values:
        stamp = int(value.split(":")[0]) if ":" in value else time
        time = max(time, stamp)
        expected.append(stamp)
    flag = tmp_path / "fails"
    flag.touch()
    builder = ms.StreamsBuilder()
    stream = builder.stream(source, timestamp=extract_timestamp).map_values(FailsOnce(values[30_001], flag))
    stream.to(out)
    stream.select_key(lambda key, value: value).repartition(partitions=2).to(again)
    settings: dict[str, Any] = {"max_batch_records": 12_000, "processing_guarantee": guarantee}

    apps.kafka.produce(source, [("k", value) for value in values[:20_000]])
    apps.run(builder.build(), **settings)
    apps.kafka.produce(source, [("k", value) for value in values[20_000:]])
    with pytest.raises(ProcessingError, match="fails once"):
        apps.run(builder.build(), **settings)
    flag.unlink()
    running = apps.run(builder.build(), **settings)

    assert running.metrics()["dropped_records"] == 0
    found = committed_records(apps.kafka, out)
    assert [record.timestamp for record in found] == expected
    repartitioned = committed_records(apps.kafka, again)
    assert sorted(record.timestamp for record in repartitioned) == sorted(expected)
    if guarantee == "at_least_once":
        assert lag(apps.kafka, apps.id, source) == 0
