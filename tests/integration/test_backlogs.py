"""A backlog that is re-keyed after a stateful operator, through a repartition topic, is processed as if it were sorted.

Four tasks write the topic, each its whole micro-batch at once. The records cover ten hours, in order. The operators after the topic
have five minutes of grace, or join each record with the table row that was valid at its time.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark import cloudpickle

import millstream as ms
from millstream.core.engine.records.merging import WRITER_HEADER
from millstream.core.model.record import Records
from millstream.drivers.kafka.produce import KafkaSender
from millstream.testing.crash import Topics
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram

from .helpers import Apps, committed_records, eventually, lag, latest, written

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS = 8_000
GROUPS = 50
BEGIN = 1_600_000_200_000
STEP = 36_000_000 // RECORDS
WINDOW = timedelta(minutes=10)
GRACE = timedelta(minutes=5)


class PassThrough(ms.Processor):
    stores = (ms.stores.key_value("kept", ms.serdes.string, ms.serdes.int64),)

    def process(self, record):
        self.context.forward(record)


def after_stateful_processor(builder: ms.StreamsBuilder, topic: str) -> ms.KStream:
    return builder.stream(topic).process_values(PassThrough)


def windows(builder: ms.StreamsBuilder, topic: str) -> ms.KTable:
    grouped = after_stateful_processor(builder, topic).group_by(lambda _, group: group)
    return grouped.windowed_by(ms.TumblingWindows(WINDOW, grace=GRACE)).count(store="counts")


def window_name(window: ms.Windowed, _: int) -> str:
    return f"{window.key}@{window.start}"


def counting_topology(topics: Topics) -> ms.Topology:
    builder = ms.StreamsBuilder()
    windows(builder, topics.input).to_stream(window_name).to(topics.output, value=ms.serdes.int64)
    return builder.build()


def closing_topology(topics: Topics) -> ms.Topology:
    builder = ms.StreamsBuilder()
    closed = windows(builder, topics.input).suppress(ms.Suppressed.until_window_closes())
    closed.to_stream(window_name).to(topics.output, value=ms.serdes.int64)
    return builder.build()


def expected_counts() -> Counter[str]:
    """Return the counts per window of all records in order."""
    size = int(WINDOW.total_seconds() * 1000)
    times = ((n % GROUPS, BEGIN + n * STEP) for n in range(RECORDS))
    return Counter(f"g{group}@{timestamp - timestamp % size}" for group, timestamp in times)


def backlog() -> list[tuple[str, str, int]]:
    return [(f"k{n}", f"g{n % GROUPS}", BEGIN + n * STEP) for n in range(RECORDS)]


def topics_of(apps: Apps) -> Topics:
    return Topics(apps.topic("in", 4), apps.topic("out", 4), "", "")


@pytest.mark.parametrize(("guarantee", "size"), [("at_least_once", 900), ("exactly_once", 1_000_000)])
def test_no_windowed_record_is_dropped_as_late(apps: Apps, guarantee: str, size: int) -> None:
    topics = topics_of(apps)
    apps.kafka.produce(topics.input, backlog())
    running = apps.run(counting_topology(topics), processing_guarantee=guarantee, max_batch_records=size)
    assert running.metrics()["dropped_records"] == 0
    assert latest(committed_records(apps.kafka, topics.output), ms.serdes.int64) == expected_counts()
    assert lag(apps.kafka, apps.id, f"{apps.id}-counts-repartition") == 0


def test_windows_close_once_with_all_their_records(apps: Apps) -> None:
    topics = topics_of(apps)
    apps.kafka.produce(topics.input, backlog())
    running = apps.run(closing_topology(topics), max_batch_records=1_500)
    assert running.metrics()["dropped_records"] == 0
    closed = [
        (r.key.decode(), ms.serdes.int64.deserialize(r.value)) for r in apps.kafka.consume(topics.output)
    ]
    assert len(closed) == len(dict(closed)) > GROUPS * 30
    assert dict(closed).items() <= expected_counts().items()


@pytest.mark.soak
def test_counts_are_correct_after_a_kill_in_the_middle_of_the_backlog(apps: Apps, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    topics = topics_of(apps)
    apps.kafka.produce(topics.input, backlog())
    settings = {"max_batch_records": 900, "processing_guarantee": "exactly_once"}
    program_settings = {
        "bootstrap_servers": apps.kafka.bootstrap_servers,
        "state_dir": str(apps.home),
        "master": "local[2]",
        "spark": {"spark.ui.enabled": "false"},
    }
    program = CrashedProgram(
        tmp_path, Job(apps.id, counting_topology, topics, {**settings, **program_settings})
    )
    try:
        program.start()
        eventually(lambda: written(apps.kafka, topics.output) > 500, "results", within_s=400)
        program.kill()
        assert lag(apps.kafka, apps.id, topics.input) > 0  # part of the backlog is left
        apps.run(counting_topology(topics), **settings)
    finally:
        program.kill()
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert latest(committed_records(apps.kafka, topics.output), ms.serdes.int64) == expected_counts()


@pytest.mark.parametrize("size", [900, 6_000])
def test_a_join_uses_the_table_row_that_was_valid_at_the_time_of_the_record(apps: Apps, size: int) -> None:
    """The table is read directly from its topic; the stream records of the same time arrive a micro-batch later."""
    topics, rates = topics_of(apps), apps.topic("rates", 4)
    apps.kafka.produce(topics.input, backlog())
    changes = [(f"g{n % GROUPS}", f"r{n}", BEGIN + n * 10 * STEP + 1) for n in range(RECORDS // 10)]
    apps.kafka.produce(rates, changes)
    builder = ms.StreamsBuilder()
    table = builder.table(rates, store="rates")
    orders = after_stateful_processor(builder, topics.input).map(lambda key, group: (group, key))
    orders.left_join(table, lambda order, rate: f"{order}:{rate}").to(topics.output)
    running = apps.run(builder.build(), max_batch_records=size)
    valid: dict[str, str] = {}
    expected: dict[str, list[str]] = {}
    events = sorted(
        [(timestamp, 0, group, key) for key, group, timestamp in backlog()]
        + [(timestamp, 1, g, r) for g, r, timestamp in changes]
    )
    for _, changes_rate, group, value in events:
        if changes_rate:
            valid[group] = value
        else:
            expected.setdefault(group, []).append(f"{value}:{valid.get(group)}")
    results: dict[str, list[str]] = {}
    for record in apps.kafka.consume(topics.output):
        results.setdefault(record.key.decode(), []).append(record.value.decode())
    assert results == expected
    assert running.metrics()["buffered_records"] == 0


@pytest.mark.soak
def test_two_re_keyed_streams_are_joined_within_their_windows(apps: Apps) -> None:
    topics, other = topics_of(apps), apps.topic("other", 2)
    apps.kafka.produce(topics.input, backlog())
    apps.kafka.produce(other, [(key, group, timestamp + 1) for key, group, timestamp in backlog()[::7]])
    builder = ms.StreamsBuilder()
    left = after_stateful_processor(builder, topics.input).select_key(lambda key, _: key)
    right = (
        builder.stream(other).group_by_key().count(store="seen").to_stream().select_key(lambda key, _: key)
    )
    near = ms.JoinWindows(before=1_000, after=1_000, grace=0)
    left.join(right, lambda group, count: f"{group}:{count}", windows=near).to(topics.output)
    running = apps.run(builder.build(), max_batch_records=700)
    results = {r.key.decode(): r.value.decode() for r in apps.kafka.consume(topics.output)}
    assert running.metrics()["dropped_records"] == 0
    assert results == {key: f"{group}:1" for key, group, _ in backlog()[::7]}


def test_a_record_of_a_repartition_topic_has_the_task_that_wrote_it_in_a_header(
    apps_without_spark: Apps,
) -> None:
    kafka, topic = apps_without_spark.kafka, apps_without_spark.topic("again", 1)
    sender = KafkaSender({"bootstrap.servers": kafka.bootstrap_servers})
    sender.publish(topic, Records([b"a"], [b"1"], [5], writer="0_3"))
    sender.publish(topic, Records([b"b"], [b"2"], [6], [], [(("own", b"x"),)], None, "0_3"))
    sender.publish(topic, Records([b"c"], [b"3"], [7]))
    sender.flush()
    mark = (WRITER_HEADER, b"0_3")
    assert [tuple(record.headers) for record in kafka.consume(topic)] == [(mark,), (("own", b"x"), mark), ()]
