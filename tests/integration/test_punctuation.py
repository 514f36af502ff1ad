"""Wall-clock punctuation while nothing arrives."""

from __future__ import annotations

import pytest

from .helpers import Apps, eventually
from .topologies import ticking_copies

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.alone  # a micro-batch that takes longer than a second skips one
def test_every_second_is_ten_times_in_ten_idle_seconds(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)

    def ticks() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for record in apps.kafka.consume(sink):
            found.setdefault((record.key or b"").decode(), []).append(int(record.value or b""))
        return found

    running = apps.start(ticking_copies(1_000, {source: sink}))
    eventually(lambda: len(ticks()) == 2, "the clocks of both tasks")
    began = max(max(times) for times in ticks().values())
    assert not running.await_termination(11)
    running.stop()
    for times in ticks().values():
        assert 9 <= sum(began < time_ms <= began + 10_000 for time_ms in times) <= 11
        assert times == sorted(set(times))
