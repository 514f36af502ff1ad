"""Sources with a topic pattern on Spark: matching topics appear, disappear and are created again."""

from __future__ import annotations

import logging
import re

import pytest

import millstream as ms

from .helpers import Apps, eventually, latest

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_matching_topics_may_appear_disappear_and_be_created_again(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream(re.compile(re.escape(apps.id) + "-in-.*")).group_by_key().count(store="counts")
    counts.to_stream().to(apps.topic("counts", 1), value=ms.serdes.int64)
    topology, settings = builder.build(), {"metadata_max_age_ms": 200, "request_timeout_ms": 2_000}

    def counted() -> dict[str | None, int]:
        return latest(apps.kafka.consume(f"{apps.id}-counts"), ms.serdes.int64)

    with caplog.at_level(logging.WARNING, "millstream.application"):
        running = apps.start(topology, auto_offset_reset="latest", **settings)  # nothing matches yet
        first = apps.topic("in-a", 2)
        apps.kafka.produce(
            first, [("k", "x"), ("l", "x")]
        )  # read even if produced before the topic is discovered
        eventually(lambda: counted() == {"k": 1, "l": 1}, "a topic that has appeared")
        second = apps.topic("in-b", 2)
        apps.kafka.produce(second, [("k", "x")])
        eventually(lambda: counted() == {"k": 2, "l": 1}, "a second one, in the same counts")
        apps.kafka.delete_topic(first)
        eventually(lambda: f"gone: {first}" in caplog.text, "a topic that is gone")
        apps.kafka.produce(second, [("k", "x")])
        eventually(lambda: counted() == {"k": 3, "l": 1}, "the rest goes on")
        running.stop()
    apps.topic("in-a", 2)
    apps.kafka.produce(first, [("l", "x")])
    apps.kafka.produce(second, [("l", "x")])
    apps.run(topology, **settings)
    assert counted() == {"k": 3, "l": 3}, "offsets are kept, and a topic that was made again is read whole"
