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
    """Count clicks per window behind a topic of their own, keep late ones, and join them with what was shown before."""
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


def test_they_do_on_spark_what_they_do_in_the_test_driver(apps: Apps) -> None:
    topics = Topics(*(apps.topic(name, 2) for name in Topics._fields))
    topology = clicks_of(topics)

    def given(topic: str) -> list[tuple[str, str]]:
        return sorted((r.key.decode(), r.value.decode()) for r in apps.kafka.consume(topic))

    apps.kafka.produce(topics.shown, [("a", "tea", 100), ("a", "milk", 900)])
    apps.run(topology)
    running = apps.start(topology)
    apps.kafka.produce(topics.clicks, [("a", "one", 500), ("a", "robot", 600), ("a", "two", 1_000)])
    eventually(lambda: given(topics.pairs) == [("a", "one tea"), ("a", "two milk")], "the pairs")
    running.stop()

    running = apps.start(topology)
    apps.kafka.produce(topics.clicks, [("a", "three", 999)])
    eventually(lambda: given(topics.late) == [("a", "three")], "the late click")
    eventually(lambda: given(topics.counts) == [("a@0", "1")], "the window that the next look gives")
    running.stop()


class Twice(ms.Processor[str, str, str, str]):
    """Hands each record on two times."""

    def process(self, record: ms.Record[str, str]) -> None:
        self.context.forward(record)
        self.context.forward(record)


class Marked(ms.Processor[str, str, str, str]):
    """Marks the values of what a processor gets that it is wrapped around."""

    def __init__(self, inner: ms.Processor[str, str, str, str]) -> None:
        self._inner = inner

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        self._inner.init(context)

    def process(self, record: ms.Record[str, str]) -> None:
        self._inner.process(record.with_value(record.value + "!"))


def test_streams_of_one_topic_share_its_source_and_processors_are_wrapped(apps: Apps) -> None:
    topic, words, counts = (apps.topic(name, 2) for name in ("in", "words", "counts"))
    builder = ms.StreamsBuilder(wrap=lambda name, supplier: lambda: Marked(supplier()))
    builder.stream(topic).process(Twice, name="twice").to(words)
    builder.stream(topic).group_by_key().count(store="counts").to_stream().map_values(str).to(counts)
    running = apps.start(builder.build())
    apps.kafka.produce(topic, [("a", "x", 1), ("b", "y", 2)])

    def given(of: str) -> list[tuple[str, str]]:
        return sorted((r.key.decode(), r.value.decode()) for r in apps.kafka.consume(of))

    eventually(lambda: given(words) == [("a", "x!"), ("a", "x!"), ("b", "y!"), ("b", "y!")], "the words")
    eventually(lambda: given(counts) == [("a", "1"), ("b", "1")], "the counts")
    running.stop()
