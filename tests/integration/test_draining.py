"""An application that is stopped with calls in flight finishes them within the drain timeout, or after the next start."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError

from .helpers import Apps, eventually, lag, written

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_stop_drains_calls_until_its_timeout_and_the_next_start_finishes_the_rest(
    apps: Apps, tmp_path: Path
) -> None:
    source, sink, release = apps.topic("in", 1), apps.topic("out", 1), tmp_path / "go on"

    async def call(value: str) -> object:
        while value == "7" and not release.exists():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        return f"{value}!"

    builder = ms.StreamsBuilder()
    builder.stream(source).map_values_async(call, max_in_flight=20, order="completion").to(sink)
    apps.kafka.produce(source, [(None, str(n)) for n in range(200)])
    with apps.start(builder.build(), drain_timeout_ms=5_000) as running:
        eventually(
            lambda: any(operator.with_async_worker for operator in running.status().calls.values()), "calls"
        )
        running.stop()
        assert written(apps.kafka, sink) == 199
        assert apps.kafka.committed(apps.id, source) == {0: 7}
        (calls,) = running.status().calls.values()
        assert (calls.with_async_worker, calls.waiting, calls.parked, calls.held) == (1, 0, 0, 0)
    with apps.start(builder.build()) as running:
        stopping = threading.Thread(target=running.stop, kwargs={"drain_timeout_s": 60})
        stopping.start()
        eventually(lambda: running.status().state == "draining", "the application to drain")
        apps.kafka.produce(source, [(None, "too late")])
        release.touch()
        stopping.join(60)
        assert running.status().state == "stopped"
        (calls,) = running.status().calls.values()
        assert (calls.with_async_worker, calls.waiting, calls.parked, calls.held) == (0, 0, 0, 0)
    assert lag(apps.kafka, apps.id, source) == 1
    values = Counter(record.value for record in apps.kafka.consume(sink))
    assert values == Counter(f"{n}!".encode() for n in range(200))


def test_removing_an_operator_does_not_silently_drop_its_unfinished_records(
    apps: Apps, tmp_path: Path
) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)

    async def call(value: str) -> str:
        while value != "fast":
            await asyncio.sleep(0.02)
        return value

    def calling(*, calls: bool) -> ms.Topology:
        builder = ms.StreamsBuilder()
        stream = builder.stream(source)
        (stream.map_values_async(call, name="call") if calls else stream).to(sink)
        return builder.build()

    apps.kafka.produce(source, [("a", "slow"), ("b", "slow"), ("c", "fast")])
    with apps.start(calling(calls=True)):
        eventually(lambda: written(apps.kafka, sink) == 1, "the fast one")
    with pytest.raises(
        IncompatibleTopologyError, match=r"'call-unfinished', and 2 of them are waiting there"
    ):
        apps.run(calling(calls=False))
    running = apps.run(calling(calls=False), on_removed_operator="drop")
    assert running.metrics()["dropped_records: unfinished record of a removed operator"] == 2
    assert lag(apps.kafka, apps.id, source) == 0
    assert written(apps.kafka, sink) == 1
