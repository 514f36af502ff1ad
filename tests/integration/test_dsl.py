"""Operators of the DSL that need more than one task or topic, with a real broker and Spark."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import millstream as ms

from .helpers import Apps, eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class Topics(NamedTuple):
    """The topics of the test."""

    clicks: str
    shown: str
    between: str
    late: str
    counts: str
    pairs: str


def clicks_of(topics: Topics) -> ms.Topology:
    """Count clicks per window after a through topic, keep late clicks, and join clicks with the ads that were shown before."""
    builder = ms.StreamsBuilder()
    real, _ = builder.stream(topics.clicks).branch(lambda _, v: v != "robot", lambda _, v: True)
    clicks = real.through(topics.between)
    emit = ms.EmitStrategy.on_window_close(every=1)
    windowed = clicks.group_by_key().windowed_by(
        ms.TumblingWindows(1_000, grace=0), emit=emit, late=lambda late: late.to(topics.late)
    )
    counted = windowed.count(store="counts").to_stream(lambda window, _: f"{window.key}@{window.start}")
    counted.map_values(str).to(topics.counts)
    windows = ms.JoinWindows(before=500, after=0, grace=1_000)
    clicks.join_prior(
        builder.stream(topics.shown), lambda click, ad: f"{click} {ad}", windows=windows, name="seen"
    ).to(topics.pairs)
    return builder.build(explicit_names=True)


def test_branches_windows_late_records_and_prior_joins_work_on_spark(apps: Apps) -> None:
    topics = Topics(*(apps.topic(name, 2) for name in Topics._fields))
    topology = clicks_of(topics)

    def contents(topic: str) -> list[tuple[str, str]]:
        return sorted((r.key.decode(), r.value.decode()) for r in apps.kafka.consume(topic))

    apps.kafka.produce(topics.shown, [("a", "tea", 100), ("a", "milk", 900)])
    apps.run(topology)
    running = apps.start(topology)
    apps.kafka.produce(topics.clicks, [("a", "one", 500), ("a", "robot", 600), ("a", "two", 1_000)])
    eventually(lambda: contents(topics.pairs) == [("a", "one tea"), ("a", "two milk")], "the pairs")
    running.stop()

    running = apps.start(topology)
    apps.kafka.produce(topics.clicks, [("a", "three", 999)])
    eventually(lambda: contents(topics.late) == [("a", "three")], "the late click")
    eventually(lambda: contents(topics.counts) == [("a@0", "1")], "the window that the next look gives")
    running.stop()


class ForwardTwice(ms.Processor[str, str, str, str]):
    """Forwards each record twice."""

    def process(self, record: ms.Record[str, str]) -> None:
        self.context.forward(record)
        self.context.forward(record)


class MarkingWrapper(ms.Processor[str, str, str, str]):
    """Wraps a processor, and marks the values of the records that it receives."""

    def __init__(self, inner: ms.Processor[str, str, str, str]) -> None:
        self._inner = inner

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        self._inner.init(context)

    def process(self, record: ms.Record[str, str]) -> None:
        self._inner.process(record.with_value(record.value + "!"))


def test_streams_of_one_topic_share_its_source_and_processors_are_wrapped(apps: Apps) -> None:
    topic, words, counts = (apps.topic(name, 2) for name in ("in", "words", "counts"))
    builder = ms.StreamsBuilder(wrap=lambda name, supplier: lambda: MarkingWrapper(supplier()))
    builder.stream(topic).process(ForwardTwice, name="twice").to(words)
    builder.stream(topic).group_by_key().count(store="counts").to_stream().map_values(str).to(counts)
    running = apps.start(builder.build())
    apps.kafka.produce(topic, [("a", "x", 1), ("b", "y", 2)])

    def contents(of: str) -> list[tuple[str, str]]:
        return sorted((r.key.decode(), r.value.decode()) for r in apps.kafka.consume(of))

    eventually(lambda: contents(words) == [("a", "x!"), ("a", "x!"), ("b", "y!"), ("b", "y!")], "the words")
    eventually(lambda: contents(counts) == [("a", "1"), ("b", "1")], "the counts")
    running.stop()
