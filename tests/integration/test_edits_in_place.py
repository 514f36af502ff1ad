"""A topology is edited while the application runs: state is kept, no record is lost or counted twice, and a failed edit is undone."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError, IncompatibleTopologyError, MillstreamError

from .helpers import Apps, committed_records, eventually, latest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MAX_PAUSE_S = 5.0 if os.environ.get("MILLSTREAM_TEST_PROOFS") == "full" else 10.0
"""How long an edit may stop the intake: five seconds in `make soak`, on a quiet machine; ten seconds elsewhere."""


def counting(
    source: str,
    sink: str,
    *,
    by: ms.Serde[int] = ms.serdes.int64,
    lengths: str | None = None,
    prices: str | None = None,
) -> ms.Topology:
    """Count records per key. With `lengths`, count them per length of key too, in a part that comes before the first count."""
    builder = ms.StreamsBuilder()
    if prices is not None:
        builder.table(prices, store="prices")
    if lengths is not None:
        lines = builder.stream(source, value=ms.serdes.string)
        grouped = lines.group_by(lambda key, _: len(key), key=ms.serdes.int32)
        grouped.count(store="lengths").to_stream().map_values(str).to(lengths, key=ms.serdes.int32)
    else:
        lines = builder.stream(source, value=ms.serdes.string)
    counts = lines.group_by_key().aggregate(
        int, lambda key, value, count: count + 1, value=by, store="counts"
    )
    counts.to_stream().to(sink, value=by)
    return builder.build()


class Broken(ms.Processor):
    """Fails when its task starts."""

    def init(self, context: ms.ProcessorContext) -> None:
        raise LookupError("no table of rates")

    def process(self, record: ms.Record) -> None:
        raise AssertionError


def with_broken_part(source: str, sink: str) -> ms.Topology:
    builder = ms.StreamsBuilder()
    lines = builder.stream(source, value=ms.serdes.string)
    counts = lines.group_by_key().aggregate(
        int, lambda key, value, count: count + 1, value=ms.serdes.int64, store="counts"
    )
    counts.to_stream().to(sink, value=ms.serdes.int64)
    builder.add_state_store(ms.stores.key_value("rates", ms.serdes.string, ms.serdes.int64))
    lines.process(Broken, stores=["rates"])
    return builder.build()


@contextmanager
def producing(apps: Apps, source: str) -> Iterator[Counter[str]]:
    """Write records while the block runs; yield the number of written records per key."""
    written, done = Counter[str](), threading.Event()

    def produce() -> None:
        number = 0
        while not done.is_set():
            keys = [f"k{number % 7}", "x" * (number % 3 + 1)]
            apps.kafka.produce(source, [(key, "v") for key in keys])
            written.update(keys)
            number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join()


def await_counts(apps: Apps, sink: str, expected: Counter[str]) -> None:
    eventually(lambda: latest(apps.kafka.consume(sink), ms.serdes.int64) == expected, "the counts")


@pytest.mark.alone  # it measures how long the intake stops
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_an_edit_keeps_state_while_records_arrive(apps: Apps, guarantee: str) -> None:
    source, sink, lengths = apps.topic("in", 2), apps.topic("out", 1), apps.topic("lengths", 1)
    running = apps.start(counting(source, sink), processing_guarantee=guarantee)
    with producing(apps, source) as written:
        eventually(lambda: running.metrics()["read_records"] > 50, "records")
        edited = counting(source, sink, lengths=lengths)
        preview = running.edit(edited, preview=True)
        assert (preview.kept, preview.begun, preview.dropped) == (("counts",), ("lengths",), ())
        assert str(preview) == f"keeps counts\nbegins lengths\nwrites {lengths}"
        before = time.monotonic()
        assert running.edit(edited) == preview
        assert time.monotonic() - before < MAX_PAUSE_S
        assert running.status().state == "running"
        already_read = running.metrics()["read_records"]
        eventually(lambda: running.metrics()["read_records"] > already_read + 50, "records after the edit")
        back = running.edit(counting(source, sink))
        assert (back.kept, back.dropped, back.writes_no_longer) == (("counts",), ("lengths",), (lengths,))
        already_read = running.metrics()["read_records"]
        eventually(
            lambda: running.metrics()["read_records"] > already_read + 50, "records after the second edit"
        )
    await_counts(apps, sink, written)
    counts = running.store(
        "counts"
    )  # reads committed micro-batches; at least once, results are visible earlier
    eventually(lambda: counts.all() == sorted(written.items()), "the counts to be committed")
    values = [int.from_bytes(record.value or b"", "big") for record in apps.kafka.consume(sink)]
    assert len(values) == written.total()  # no record was counted twice


def test_an_incompatible_edit_is_refused_and_changes_nothing(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)
    running = apps.start(counting(source, sink))
    apps.kafka.produce(source, [("a", "v")])
    eventually(lambda: running.metrics()["read_records"] == 1, "the record")
    batch = running.status().batch
    for preview in (True, False):
        with pytest.raises(IncompatibleTopologyError, match=r"store 'counts' is .* but .* in the checkpoint"):
            running.edit(counting(source, sink, by=ms.serdes.int32), preview=preview)
    apps.kafka.produce(source, [("a", "v")])
    await_counts(apps, sink, Counter(a=2))
    assert running.status().batch >= batch
    running.stop()
    with pytest.raises(ControlError, match="is stopped, so its topology cannot be edited"):
        running.edit(counting(source, sink))


def test_an_edit_that_fails_to_start_is_undone(apps: Apps) -> None:
    source, sink, prices = apps.topic("in", 2), apps.topic("out", 1), apps.topic("prices", 2)
    apps.kafka.produce(prices, [("tea", "3"), ("rum", "9")])
    topology = counting(source, sink, prices=prices)
    running = apps.start(topology, processing_guarantee="exactly_once")
    eventually(lambda: running.store("prices").get("tea") == "3", "the price of tea")
    waiting = threading.Thread(target=running.await_termination)
    waiting.start()
    with producing(apps, source) as written:
        eventually(lambda: running.metrics()["read_records"] > 50, "records")
        with pytest.raises(MillstreamError, match="no table of rates"):
            running.edit(with_broken_part(source, sink))
        assert running.status().state == "running"
        already_read = running.metrics()["read_records"]
        eventually(
            lambda: running.metrics()["read_records"] > already_read + 50, "records after the failed edit"
        )
    await_counts(apps, sink, written)
    assert waiting.is_alive()
    assert running.store("prices").get("tea") == "3"  # the failed topology has no table of prices
    running.stop()
    waiting.join(60)
    with apps.start(topology, processing_guarantee="exactly_once") as again:
        eventually(lambda: again.store("prices").get("rum") == "9", "the price of rum")
    assert len(committed_records(apps.kafka, sink)) == written.total()
