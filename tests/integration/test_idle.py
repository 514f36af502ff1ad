"""Windows of an idle input on Spark and a real broker."""

from __future__ import annotations

import pytest

import millstream as ms

from .helpers import Apps, eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark]

IDLE_MS = 1500


def counts(source: str, closed: str, final: str) -> ms.Topology:
    """Count per window twice: emitted when windows close, and as updates that are suppressed until then."""
    builder = ms.StreamsBuilder()
    grouped = builder.stream(source).group_by_key()
    windows = ms.TumblingWindows(1_000, grace=0)
    emit = ms.EmitStrategy.on_window_close(close_idle_after=IDLE_MS)
    until = ms.Suppressed.until_window_closes(close_idle_after=IDLE_MS)
    on_close = grouped.windowed_by(windows, emit=emit).count(store="closed")
    suppressed = grouped.windowed_by(windows).count(store="counts").suppress(until, store="held")
    for table, topic in ((on_close, closed), (suppressed, final)):
        table.to_stream(lambda window, _: f"{window.key}@{window.start}").map_values(str).to(topic)
    return builder.build()


def test_windows_of_an_idle_input_close_by_the_wall_clock(apps: Apps) -> None:
    source, closed, final = apps.topic("in", 2), apps.topic("closed", 1), apps.topic("final", 1)
    topology = counts(source, closed, final)

    def results(topic: str) -> list[tuple[str | None, bytes | None]]:
        return sorted((record.key.decode(), record.value) for record in apps.kafka.consume(topic))

    apps.kafka.produce(source, [("a", "x", 100), ("b", "x", 200), ("a", "x", 300)])
    running = apps.start(topology)
    expected = [("a@0", b"2"), ("b@0", b"1")]
    eventually(lambda: results(closed) == results(final) == expected, "the first window")
    apps.kafka.produce(source, [("a", "late", 999), ("a", "x", 1_000)])
    expected.insert(1, ("a@1000", b"1"))
    eventually(lambda: results(closed) == results(final) == expected, "the next window")
    metrics = running.metrics()
    running.stop()
    assert metrics["dropped_records: late for a window"] == 2
