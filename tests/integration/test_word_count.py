"""Topologies on Spark and a real broker: results, partitions, offsets and metrics.

The oracle is Python's `Counter` for results, and Kafka's own tools (the Java producer, kafka-consumer-groups) for partitions and
offsets.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer

import millstream as ms

from .helpers import Apps, eventually, lag, latest, produce_with_headers, values_by_key, written
from .topologies import (
    Clock,
    EverySecond,
    Numbered,
    key_count,
    people_per_region,
    shout,
    with_processor,
    word_count,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

WORDS = ["to", "be", "or", "not", "straße", "x", "12345678", *(f"word-{i}" for i in range(60))]


def some_lines(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(0, 8))) for _ in range(count)]


@dataclass
class Counted:
    apps: Apps
    lines: list[str]
    source: str
    sink: str
    result: ms.RunningApplication

    @property
    def expected(self) -> Counter[str]:
        return Counter(word for line in self.lines for word in line.split())


@pytest.fixture(scope="module")
def counted(module_apps: Apps) -> Counted:
    source, sink = module_apps.topic("lines", 3), module_apps.topic("counts", 4)
    lines = some_lines(3_000, seed=7)
    # With keys, because a producer may send few records without one to a single partition.
    module_apps.kafka.produce(source, [(str(number), line) for number, line in enumerate(lines)])
    result = module_apps.run(word_count(source, sink))
    return Counted(module_apps, lines, source, sink, result)


class TestARunToTheEnd:
    def test_counts_every_word_step_by_step(self, counted: Counted) -> None:
        series = values_by_key(counted.apps.kafka.consume(counted.sink), ms.serdes.int64)
        assert series == {word: list(range(1, n + 1)) for word, n in counted.expected.items()}

    def test_chooses_the_same_partitions_as_a_java_producer(self, counted: Counted) -> None:
        kafka = counted.apps.kafka
        by_java = counted.apps.topic("by-java", 4)
        kafka.tool(
            "kafka-console-producer", "--topic", by_java, "--reader-property", "parse.key=true",
            "--reader-property", "key.separator=:", stdin="".join(f"{word}:1\n" for word in counted.expected),
        )  # fmt: skip
        expected = {record.key: record.partition for record in kafka.consume(by_java)}
        assert len(expected) == len(counted.expected)
        assert {record.key: record.partition for record in kafka.consume(counted.sink)} == expected

    def test_commits_the_offsets_of_the_group(self, counted: Counted) -> None:
        kafka = counted.apps.kafka
        assert kafka.committed(counted.apps.id, counted.source) == kafka.end_offsets(counted.source)

    def test_reports_its_progress(self, counted: Counted) -> None:
        status, metrics = counted.result.status(), counted.result.metrics()
        assert (status.state, status.error, status.lag) == ("stopped", None, {counted.source: 0})
        assert metrics["dropped_records"] == 0
        assert metrics["processed_records"] == len(counted.lines) + counted.expected.total()
        assert metrics["state_bytes"] > 0
        assert metrics["first_record_ms"] <= metrics["last_batch_ms"]


class TestContinuation:
    def test_a_second_run_continues_where_the_first_ended(self, apps: Apps) -> None:
        source, sink = apps.topic("in"), apps.topic("out")
        topology = key_count(source, sink)
        apps.kafka.produce(source, [("a", "1"), ("b", "1"), ("a", "1")])
        apps.run(topology)
        apps.kafka.produce(source, [("a", "1"), ("c", "1")])
        second = apps.run(topology)
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {
            "a": [1, 2, 3],
            "b": [1],
            "c": [1],
        }
        assert second.metrics()["processed_records"] == 2
        assert lag(apps.kafka, apps.id, source) == 0

        idle = apps.run(topology)
        assert idle.metrics()["processed_records"] == 0
        assert written(apps.kafka, sink) == 5

    def test_a_stopped_application_continues_when_it_is_started_again(self, apps: Apps) -> None:
        source, sink = apps.topic("in"), apps.topic("out")
        topology = key_count(source, sink)
        running = apps.start(topology)
        assert running.status().state == "running"
        apps.kafka.produce(source, [("a", "1")])
        eventually(lambda: written(apps.kafka, sink) == 1, "the count of the first record")
        apps.kafka.produce(source, [("a", "1")])
        eventually(lambda: lag(apps.kafka, apps.id, source) == 0, "the second record to be committed")
        began = time.monotonic()
        running.stop()
        assert time.monotonic() - began < 20
        assert running.status().state == "stopped"
        assert running.await_termination(1)

        restarted = apps.start(topology)  # there are no new records, and the start must not wait for any
        apps.kafka.produce(source, [("a", "1")])
        eventually(lambda: written(apps.kafka, sink) == 3, "the count of the third record")
        restarted.stop()
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2, 3]}


class TestRecords:
    def test_keep_timestamps_headers_and_nulls_through_a_stateless_topology(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        sent = [
            ("k", "v", 1_000, [("trace", b"1"), ("trace", b"2"), ("empty", None)]),
            (None, "no key", 900, []),
            ("gone", None, 1_700_000_000_000, [("a", b"\x00\xff")]),
            (None, None, 7, []),
            ("", "", 8, []),
        ]
        produce_with_headers(apps.kafka, source, sent)
        apps.run(shout(source, sink))
        got = [(r.key, r.value, r.timestamp, r.headers) for r in apps.kafka.consume(sink)]
        assert got == [
            (b"k", b"V", 1_000, (("trace", b"1"), ("trace", b"2"), ("empty", None))),
            (None, b"NO KEY", 900, ()),
            (b"gone", None, 1_700_000_000_000, (("a", b"\x00\xff"),)),
            (None, None, 7, ()),
            (b"", b"", 8, ()),
        ]

    def test_keep_timestamps_and_headers_through_a_processor_with_a_store(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        topology = with_processor(Numbered, source, sink, Numbered.store)
        produce_with_headers(apps.kafka, source, [("k", "x", 50, [("h", b"1")]), ("k", "y", 40, [])])
        apps.run(topology)
        produce_with_headers(apps.kafka, source, [("k", "z", 30, [("h", None)])])
        apps.run(topology)
        got = [(r.key, r.value, r.timestamp, r.headers) for r in apps.kafka.consume(sink)]
        assert got == [
            (b"k", b"x/1", 50, (("h", b"1"),)),
            (b"k", b"y/2", 40, ()),
            (b"k", b"z/3", 30, (("h", None),)),
        ]

    def test_without_key_or_value_are_left_out_of_counts_and_counted_as_dropped(self, apps: Apps) -> None:
        source, sink = apps.topic("in"), apps.topic("out")
        apps.kafka.produce(source, [("a", "1"), (None, "1"), ("a", None), ("", "1"), ("a", ""), (None, None)])
        metrics = apps.run(key_count(source, sink)).metrics()
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2], "": [1]}
        assert (metrics["processed_records"], metrics["dropped_records"]) == (6, 3)


class TestPunctuation:
    def test_wall_clock_punctuations_fire_without_records_and_after_a_restart(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        topology = with_processor(Clock, source, sink, Clock.store)

        def ticks() -> list[int]:
            return [int(r.value or b"") for r in apps.kafka.consume(sink)]

        running = apps.start(topology)
        eventually(lambda: running.metrics()["punctuations"] >= 3, "three ticks without a record")
        running.stop()
        before = len(ticks())
        assert ticks() == list(range(1, before + 1))

        restarted = apps.start(topology)
        eventually(lambda: len(ticks()) >= before + 2, "ticks after the restart")
        restarted.stop()
        assert ticks() == list(range(1, len(ticks()) + 1))

    def test_stream_time_is_kept_across_batches_and_restarts(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        topology = with_processor(EverySecond, source, sink, EverySecond.store)
        apps.kafka.produce(source, [("k", "", 500), ("k", "", 1_200)])
        apps.run(topology)
        apps.kafka.produce(source, [("k", "", 1_300), ("k", "", 900), ("k", "", 3_500), ("k", "", 4_000)])
        apps.run(topology, max_batch_records=1)
        assert [int(r.value or b"") for r in apps.kafka.consume(sink)] == [500, 1_200, 3_500, 4_000]


class TestARepartitionAfterAStore:
    def test_uses_an_internal_topic(self, apps: Apps) -> None:
        people, sink = apps.topic("people", 3), apps.topic("out", 1)
        moves: list[tuple[str, str | None]] = [
            *((f"p{i}", f"r{i % 4}") for i in range(40)),
            *((f"p{i}", "r9") for i in range(0, 40, 5)),
            *((f"p{i}", None) for i in range(1, 40, 4)),
        ]
        apps.kafka.produce(people, moves)
        apps.run(people_per_region(people, sink))
        home = {person: region for person, region in dict(moves).items() if region}
        expected = {**dict.fromkeys(("r0", "r1", "r2", "r3", "r9"), 0), **Counter(home.values())}
        assert latest(apps.kafka.consume(sink), ms.serdes.int64) == expected
        internal = f"{apps.id}-per-region-repartition"
        assert len(apps.kafka.end_offsets(internal)) == 3
        assert lag(apps.kafka, apps.id, internal) == 0
        assert lag(apps.kafka, apps.id, people) == 0


class TestTransactions:
    """Offsets have gaps where transactions ended or were aborted; a planned range can consist of gaps only."""

    def transactions(self, apps: Apps, topic: str, *batches: tuple[str, bool]) -> None:
        producer = Producer({
            "bootstrap.servers": apps.kafka.bootstrap_servers,
            "transactional.id": topic,
        })  # fmt: skip
        producer.init_transactions(30)
        for keys, commits in batches:
            producer.begin_transaction()
            for key in keys:
                producer.produce(topic, "1", key, 0)
            producer.flush(30)
            (producer.commit_transaction if commits else producer.abort_transaction)(30)

    @pytest.mark.parametrize(
        "settings", [{"isolation_level": "read_committed"}, {"processing_guarantee": "exactly_once"}], ids=str
    )
    def test_of_other_producers_are_read_when_they_are_committed(
        self, apps: Apps, settings: dict[str, str]
    ) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        topology = key_count(source, sink)
        self.transactions(apps, source, ("aab", True), ("accc", False), ("b", True), ("ccccc", False))
        apps.run(topology, **settings, max_batch_records=2)
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2], "b": [1, 2]}
        assert lag(apps.kafka, apps.id, source) == 0

        self.transactions(apps, source, ("dd", False))  # a range without a single record
        empty_run = apps.run(topology, **settings)
        assert empty_run.metrics()["processed_records"] == 0
        assert lag(apps.kafka, apps.id, source) == 0

    def test_are_ignored_by_default_and_their_markers_are_skipped(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        self.transactions(apps, source, ("ab", True), ("a", False))
        apps.run(key_count(source, sink), max_batch_records=1)
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2], "b": [1]}
        assert lag(apps.kafka, apps.id, source) == 0

    @pytest.mark.parametrize(
        "settings", [{"isolation_level": "read_committed"}, {"processing_guarantee": "exactly_once"}], ids=str
    )
    def test_that_are_open_delay_the_reading_of_later_records(
        self, apps: Apps, settings: dict[str, str]
    ) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        topology = key_count(source, sink)
        producer = Producer({"bootstrap.servers": apps.kafka.bootstrap_servers, "transactional.id": source})
        producer.init_transactions(30)
        apps.kafka.produce(source, [("before", "1")])
        producer.begin_transaction()
        producer.produce(source, "1", "inside", 0)
        producer.flush(30)
        apps.kafka.produce(source, [("after", "1")])
        apps.run(topology, **settings)
        assert latest(apps.kafka.consume(sink)).keys() == {"before"}
        producer.commit_transaction(30)
        apps.run(topology, **settings)
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {
            "before": [1],
            "inside": [1],
            "after": [1],
        }
