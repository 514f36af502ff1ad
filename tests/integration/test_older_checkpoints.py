"""An application continues from a checkpoint of an earlier version: the formats remain readable.

``make_checkpoint`` wrote the archive at commit 909230d, when the project was called Penstock.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import millstream as ms
from millstream.testing import EmbeddedKafka

from .helpers import Apps, eventually, values_by_key
from .test_changing_topics import forget_topic_ids

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ARCHIVE = Path(__file__).parent / "data" / "checkpoint_909230d.tar.gz"
APPLICATION = "older-checkpoint"
DUE_MS = 2_000_000
EARLIER_LINES = ["a b a", "b c"]


def topology(lines: str, counts: str, loud: str, *, waits: bool) -> ms.Topology:
    """Count words after a repartition; call a function for each line, which may delay the first line and thus all later ones."""

    def call(line: str) -> Any:
        return ms.delay(until=DUE_MS) if waits and line == EARLIER_LINES[0] else line.upper()

    builder = ms.StreamsBuilder()
    read = builder.stream(lines)
    words = read.flat_map_values(str.split)
    words.group_by(lambda _, word: word).count(store="counts").to_stream().to(counts, value=ms.serdes.int64)
    read.map_values_async(call, name="call", order="partition").to(loud)
    return builder.build()


def topics(apps: Apps) -> tuple[str, str, str]:
    lines, counts, loud = (apps.topic(name, 1) for name in ("lines", "counts", "loud"))
    apps.kafka.produce(lines, [("k", line) for line in EARLIER_LINES])
    return lines, counts, loud


def write_to_repartition_topic(apps: Apps, words: list[str]) -> None:
    """Write records to the repartition topic as the earlier version did: a header names the task that wrote each."""
    topic = apps.topic("counts-repartition", 1)
    producer = Producer({"bootstrap.servers": apps.kafka.bootstrap_servers})
    for word in words:
        producer.produce(topic, f"{word} {word}", word, headers=[("penstock.task", b"0_0")])
    assert producer.flush(30) == 0


def make_checkpoint(apps: Apps, archive: Path) -> None:
    """Run the first micro-batches and archive the checkpoint."""
    running = apps.start(topology(*topics(apps), waits=True), clock=lambda: DUE_MS - 1_000_000)
    eventually(
        lambda: running.metrics().get("calls_settled", 0) == len(EARLIER_LINES), "all calls to be answered"
    )
    running.stop()
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(apps.home / apps.id / "checkpoint", "checkpoint")


def correct_schema_path(checkpoint: Path) -> None:
    """Correct the absolute path of the state's schema, which Spark keeps in the checkpoint."""
    metadata = checkpoint / "state/0/_metadata/v2/0"
    metadata.write_text(re.sub(r'file:[^"]*/checkpoint/', f"{checkpoint.as_uri()}/", metadata.read_text()))
    metadata.with_name(".0.crc").unlink()


def test_an_application_continues_from_a_checkpoint_of_an_earlier_version(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    apps = Apps(kafka, APPLICATION, tmp_path)
    lines, counts, loud = topics(apps)
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(tmp_path / APPLICATION, filter="data")
    correct_schema_path(tmp_path / APPLICATION / "checkpoint")
    forget_topic_ids(apps)  # the checkpoint has those of another broker
    write_to_repartition_topic(apps, [word for line in EARLIER_LINES for word in line.split()] + ["unread"])
    apps.kafka.produce(lines, [("k", "c a")])
    apps.run(topology(lines, counts, loud, waits=False), clock=lambda: DUE_MS)
    counted = values_by_key(kafka.consume(counts), ms.serdes.int64)
    assert counted == {"unread": [1], "c": [2], "a": [3]}
    assert [record.value for record in kafka.consume(loud)] == [b"A B A", b"B C", b"C A"]
