"""Partitioners on Spark: through its shuffle, and to several partitions of a topic."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.partitioning import partition_of

from .helpers import Apps

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class AppendTask(ms.Processor[str, str, str, str]):
    """Appends the number of the task to the value of each record."""

    def process(self, record: ms.Record[str, str]) -> None:
        self.context.count("seen")
        self.context.forward(
            record.with_value(
                f"{record.value} {self.context.app_config['where']} {self.context.task_id.partition}"
            )
        )


def to_all(topic: str, key: Any, value: Any, partitions: int) -> range | None:
    return range(partitions) if key == "all" else None


def to_first_and_last(topic: str, key: Any, value: Any, partitions: int) -> list[int]:
    return [] if value.startswith("nobody") else [0, partitions - 1]


def test_a_record_is_sent_to_every_partition_that_the_partitioner_chooses(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 4)
    builder = ms.StreamsBuilder()
    moved = builder.stream(source).repartition(name="moved", partitions=3, partitioner=to_all)
    moved.process(AppendTask, name="where").to(
        lambda key, value, context: sink, partitioner=to_first_and_last
    )
    apps.kafka.produce(source, [("all", "x"), ("all", "nobody"), ("one", "y"), (None, "z")])
    running = apps.run(builder.build(), app_config={"where": "in"})
    found = [(r.partition, (r.value or b"").decode()) for r in apps.kafka.consume(sink)]
    everywhere = [f"x in {task}" for task in range(3)]
    assert sorted(v for p, v in found if p == 0 and v[0] == "x") == everywhere
    assert sorted(v for p, v in found if p == 3 and v[0] == "x") == everywhere
    assert len([v for _, v in found if v.startswith("y")]) == 2
    assert len(found) == 8
    assert running.metrics()["dropped_records"] == 4
    assert running.metrics()["counted: seen"] == 7


def test_all_windows_of_a_key_are_in_one_partition(apps: Apps) -> None:
    source, sink, sessions = apps.topic("in", 2), apps.topic("out", 5), apps.topic("sessions", 3)
    builder = ms.StreamsBuilder()
    grouped = builder.stream(source).group_by_key()
    counts = grouped.windowed_by(ms.TumblingWindows(10, grace=1000)).count(store="tumbling")
    counts.to_stream().to(sink, value=ms.serdes.int64)
    visits = grouped.windowed_by(ms.SessionWindows(2, grace=1000)).count(store="sessions")
    visits.to_stream().to(sessions, value=ms.serdes.int64)
    keys = [f"key {number}" for number in range(8)]
    apps.kafka.produce(source, [(key, "v", start) for start in range(1, 50, 10) for key in keys])
    apps.run(builder.build())
    for topic, partitions, window_bytes in ((sink, 5, 8), (sessions, 3, 16)):
        found = {((r.key or b"")[:-window_bytes], r.partition) for r in apps.kafka.consume(topic)}
        assert found == {(key.encode(), partition_of(key.encode(), partitions)) for key in keys}
