"""Topics that change while an application uses them: partitions are added, and topics are recreated or become shorter."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.model.errors import CoPartitioningError, OffsetsLostError, TopicRecreatedError
from millstream.drivers.spark.driver.checkpoint import LocalFiles, progress_of
from millstream.edge.application.launching import Continued, Launch

from .helpers import Apps, eventually, lag, latest, values_by_key
from .topologies import key_count, word_count

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def add_partitions(apps: Apps, topic: str, count: int) -> None:
    client = AdminClient({"bootstrap.servers": apps.kafka.bootstrap_servers})
    for future in client.create_partitions([NewPartitions(topic, count)]).values():
        future.result(10)
    eventually(lambda: len(apps.kafka.end_offsets(topic)) == count, f"{count} partitions of {topic}")


def meeting(left: str, right: str, sink: str) -> ms.Topology:
    """Count the records of two topics, which meet in one store."""
    builder = ms.StreamsBuilder()
    both = builder.stream(left).merge(builder.stream(right))
    both.group_by_key().count(store="both").to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


class TestPartitionsThatAreAdded:
    def test_are_read_without_a_restart(self, apps: Apps, caplog: pytest.LogCaptureFixture) -> None:
        lines, counts = apps.topic("lines", 2), apps.topic("counts", 1)
        apps.kafka.produce(lines, [(None, "old old")])
        with caplog.at_level(logging.WARNING, "millstream.application"):
            running = apps.start(
                word_count(lines, counts), metadata_max_age_ms=200, auto_offset_reset="latest"
            )
            apps.kafka.produce(lines, [(None, "a b a")], partition=0)
            eventually(lambda: lag(apps.kafka, apps.id, lines) <= 1, "the first words")
            add_partitions(apps, lines, 5)
            # Written before the application notices the partition, but read in spite of the offset reset.
            apps.kafka.produce(lines, [(None, "a b c")], partition=4)
            apps.kafka.produce(lines, [(None, "a")], partition=0)
            eventually(
                lambda: latest(apps.kafka.consume(counts), ms.serdes.int64) == {"a": 4, "b": 2, "c": 1},
                "words of old and new partitions in the old counts",
            )
        assert f"the number of partitions has changed: {lines} from 2 to 5" in caplog.text
        assert running.status().state == "running"
        running.stop()
        assert running.await_termination(10)
        apps.kafka.produce(lines, [(None, "c")], partition=3)
        apps.run(word_count(lines, counts))
        assert latest(apps.kafka.consume(counts), ms.serdes.int64) == {"a": 4, "b": 2, "c": 2}

    def test_while_the_application_starts_are_noticed(
        self, apps: Apps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        lines, counts = apps.topic("lines", 2), apps.topic("counts", 1)
        check = Launch._check

        def grow(launch: Launch, now: Continued) -> SparkSession:
            """Add a partition after the application has counted partitions, and before it starts Spark and the query."""
            if len(apps.kafka.end_offsets(lines)) == 2:
                add_partitions(apps, lines, 3)
            return check(launch, now)

        monkeypatch.setattr(Launch, "_check", grow)
        with caplog.at_level(logging.WARNING, "millstream.application"):
            apps.start(word_count(lines, counts), metadata_max_age_ms=200)
            apps.kafka.produce(lines, [(None, "a b a")], partition=2)
            eventually(
                lambda: latest(apps.kafka.consume(counts), ms.serdes.int64) == {"a": 2, "b": 1},
                "words of the new partition",
            )
        assert f"the number of partitions has changed: {lines} from 2 to 3" in caplog.text

    def test_to_one_of_two_copartitioned_topics_fail_or_wait_for_the_other_topic(
        self, apps: Apps, caplog: pytest.LogCaptureFixture
    ) -> None:
        left, right, sink = apps.topic("left", 1), apps.topic("right", 1), apps.topic("out", 1)
        topology = meeting(left, right, sink)
        running = apps.start(topology, metadata_max_age_ms=200)
        add_partitions(apps, left, 2)
        with pytest.raises(CoPartitioningError, match=r"left' has 2, .*right' has 1"):
            running.await_termination(60)
        assert running.status().state == "failed"
        add_partitions(apps, right, 2)
        with caplog.at_level(logging.WARNING, "millstream.application"):
            apps.start(topology, metadata_max_age_ms=200, on_uneven_partitions="wait")
            add_partitions(apps, left, 3)
            eventually(
                lambda: "until the topics have equal numbers of partitions" in caplog.text, "a warning"
            )
            apps.kafka.produce(left, [("k", "x")], partition=2)
            apps.kafka.produce(right, [("l", "x")], partition=0)
            eventually(lambda: "l" in latest(apps.kafka.consume(sink), ms.serdes.int64), "the old partitions")
            assert "k" not in latest(apps.kafka.consume(sink), ms.serdes.int64)
            add_partitions(apps, right, 3)
            eventually(lambda: "k" in latest(apps.kafka.consume(sink), ms.serdes.int64), "the new partitions")


class TestARecreatedTopic:
    def test_stops_the_application_that_reads_it(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        apps.kafka.produce(source, [("a", "x")] * 3)
        running = apps.start(key_count(source, sink), metadata_max_age_ms=500)
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the old topic to be read")
        apps.kafka.delete_topic(source)
        apps.kafka.create_topic(source, 1)
        with pytest.raises(TopicRecreatedError):
            running.await_termination(60)

    def test_is_read_from_its_beginning_if_that_is_configured(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 2), apps.topic("out", 1)
        settings = {
            "on_recreated_topic": "restart_from_beginning",
            "metadata_max_age_ms": 600_000,
            "request_timeout_ms": 5_000,
        }
        apps.kafka.produce(source, [("a", "x")] * 3, partition=0)
        running = apps.start(key_count(source, sink), **settings)
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the old topic")
        apps.kafka.delete_topic(source)
        apps.kafka.create_topic(source, 1)  # shorter than before, so the planner notices at once
        apps.kafka.produce(source, [("a", "y")], partition=0)
        eventually(lambda: counted(apps, sink) == [1, 2, 3, 4], "the new topic, on the old counts")
        running.stop()
        apps.kafka.delete_topic(source)
        apps.kafka.create_topic(source, 1)
        apps.kafka.produce(
            source, [("a", "z")] * 5, partition=0
        )  # as long as before, so only the topic id differs
        apps.run(key_count(source, sink), **settings)
        assert counted(apps, sink) == list(range(1, 10))


class TestAnInterruptedMicroBatch:
    """A micro-batch that was planned before the topics changed, and that the next start repeats."""

    def test_counts_records_of_a_recreated_topic_once(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        apps.kafka.produce(source, [("a", "x")] * 3)
        apps.run(key_count(source, sink))
        interrupt(apps)
        apps.kafka.delete_topic(source)
        apps.kafka.create_topic(source, 1)
        apps.kafka.produce(source, [("a", "y")] * 5)
        apps.run(key_count(source, sink), on_recreated_topic="restart_from_beginning")
        assert counted(apps, sink) == [1, 2, 3, *range(1, 6)], "the first attempt, and the new topic"

    def test_loses_no_records_of_a_topic_that_the_repetition_does_not_read(self, apps: Apps) -> None:
        left, right, sink = apps.topic("left", 1), apps.topic("right", 1), apps.topic("out", 1)
        both, builder = meeting(left, right, sink), ms.StreamsBuilder()
        only_left = builder.stream(left).group_by_key().count(store="both")
        only_left.to_stream().to(sink, value=ms.serdes.int64)
        apps.kafka.produce(right, [("a", "x")] * 3)
        apps.run(both)
        interrupt(apps)
        apps.run(builder.build())
        assert planned(apps)["topics"][right] == {"0": 0}
        apps.run(both)
        assert counted(apps, sink) == [1, 2, 3] * 2, "the first attempt, and the records that were left out"


def test_a_topic_that_ends_before_the_offsets_already_read_is_refused_or_skipped(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    apps.kafka.produce(source, [("a", "x")] * 3)
    apps.run(key_count(source, sink))
    apps.kafka.delete_topic(source)
    apps.kafka.create_topic(source, 1)
    forget_topic_ids(apps)  # as with a broker without topic ids, where only the end offsets differ
    apps.kafka.produce(source, [("a", "x")])
    with pytest.raises(
        OffsetsLostError, match=r"ends at offset 1, but offsets up to 3 .* on_lost_offsets='skip'"
    ):
        apps.run(key_count(source, sink))
    running = apps.start(key_count(source, sink), on_lost_offsets="skip")
    eventually(lambda: planned(apps)["topics"][source] == {"0": 1}, "at the current end")
    apps.kafka.produce(source, [("a", "y")])
    eventually(lambda: counted(apps, sink) == [1, 2, 3, 4], "what comes after it")
    running.stop()


def planned(apps: Apps) -> Mapping[str, Any]:
    progress = progress_of(LocalFiles(apps.home / apps.id / "checkpoint"))
    assert progress is not None
    return progress.planned


def counted(apps: Apps, sink: str) -> list[int]:
    return values_by_key(apps.kafka.consume(sink), ms.serdes.int64).get("a", [])


def interrupt(apps: Apps) -> None:
    """Delete the commit of the last micro-batch, which has read records, as if it had been interrupted."""
    checkpoint = apps.home / apps.id / "checkpoint"
    progress = progress_of(LocalFiles(checkpoint))
    assert progress is not None
    assert progress.planned["topics"] != progress.previous["topics"]
    for name in (f"{progress.batch}", f".{progress.batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def forget_topic_ids(apps: Apps) -> None:
    offsets = apps.home / apps.id / "checkpoint" / "offsets"
    for file in [path for path in offsets.iterdir() if path.name.isdigit()]:
        text = file.read_text()
        file.write_text(text.replace('"topic_ids"', '"forgotten"'))
        (offsets / f".{file.name}.crc").unlink(missing_ok=True)
