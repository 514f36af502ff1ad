"""Wall-clock punctuation without new records."""

from __future__ import annotations

import pytest

from .clock import HandClock
from .helpers import Apps, eventually
from .topologies import ticking_copies

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.alone  # a micro-batch that takes longer than a second skips a punctuation
def test_a_punctuation_every_second_fires_ten_times_in_ten_idle_seconds(apps: Apps) -> None:
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


def test_a_paused_sub_topology_is_not_punctuated_after_a_restart(apps: Apps) -> None:
    paused, active = apps.topic("paused", 1), apps.topic("active", 1)
    outputs = apps.topic("of-paused", 1), apps.topic("of-active", 1)
    topology = ticking_copies(1_000, dict(zip((paused, active), outputs)))
    clock = HandClock(apps.home / "clock")

    def ticks() -> list[list[bytes | None]]:
        return [[record.value for record in apps.kafka.consume(sink)] for sink in outputs]

    with apps.start(topology, clock=clock) as running:
        running.pause([paused], keep=True)
    clock.set(5_000)
    running = apps.start(topology, clock=clock)
    eventually(lambda: ticks() == [[], [b"5000"]], "a tick of the active sub-topology")
    running.resume([paused])
    eventually(lambda: ticks() == [[b"5000"], [b"5000"]], "a tick of the other one")
