"""Runs that end after a number of records, before a timestamp, or after a duration; the next run continues from there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import millstream as ms

from .helpers import Apps

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_run_can_end_by_a_count_a_timestamp_or_a_duration(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)
    for partition in range(2):
        records = [("k", f"{partition}{number}", 1_000 * number + 1) for number in range(10)]
        apps.kafka.produce(source, records, partition=partition)
    builder = ms.StreamsBuilder()
    builder.stream(source).to(sink)
    topology = builder.build()

    def seen() -> list[bytes | None]:
        return sorted(record.value or b"" for record in apps.kafka.consume(sink))

    apps.application(topology).run(until=5)
    assert seen() == [b"00", b"01", b"02", b"10", b"11"]
    apps.application(topology).run(until=datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC))
    assert seen() == sorted(f"{partition}{number}".encode() for partition in range(2) for number in range(6))
    running = apps.application(topology).start(until=timedelta(seconds=3))
    apps.kafka.produce(source, [("k", "late", 1)], partition=0)
    assert running.await_termination(60)
    assert running.status().state == "stopped"
    assert len(seen()) == 21
