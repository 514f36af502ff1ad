"""What a process reads from the commits topic when it rebuilds tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.spark.executor.changelogs import PublishedSnapshots


class FakeTopic:
    """The partition with the snapshots, whose first offset is ``start``. It records the offsets that are read."""

    def __init__(self) -> None:
        self.start = 0
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.read_offsets: list[tuple[int, int]] = []

    def extent(self, topic: str, partition: int) -> OffsetRange:
        return OffsetRange(topic, partition, self.start, self.start + len(self.records))

    def read(self, offsets: OffsetRange) -> Iterator[Records]:
        if offsets.start == offsets.end:
            return
        self.read_offsets.append((offsets.start, offsets.end))
        for key, value in self.records[offsets.start - self.start : offsets.end - self.start]:
            yield Records([key], [value], [0])


@pytest.fixture
def topic() -> FakeTopic:
    topic = FakeTopic()
    topic.records = [(b"task c 0", b"old"), (b"task c 1", b"its"), (b"0", b"mark"), (b"task c 0", b"new")]
    return topic


@pytest.fixture
def snapshots(topic: FakeTopic) -> PublishedSnapshots:
    return PublishedSnapshots(topic, "app-commits")


def test_the_newest_snapshots_are_read_once(topic: FakeTopic, snapshots: PublishedSnapshots) -> None:
    for _ in range(3):
        assert snapshots.newest() == {b"task c 0": b"new", b"task c 1": b"its"}
    assert topic.read_offsets == [(0, 4)]


def test_snapshots_published_later_are_included(topic: FakeTopic, snapshots: PublishedSnapshots) -> None:
    """The first attempt of a task may have been delivered before the next one is rebuilt."""
    snapshots.newest()
    topic.records += [(b"task c 1", b"newer"), (b"task c 2", b"first")]
    assert snapshots.newest() == {b"task c 0": b"new", b"task c 1": b"newer", b"task c 2": b"first"}
    assert topic.read_offsets == [(0, 4), (4, 6)]


@pytest.mark.parametrize("start", [0, 9])
def test_snapshots_of_a_recreated_topic_are_read_from_its_beginning(
    topic: FakeTopic, snapshots: PublishedSnapshots, start: int
) -> None:
    snapshots.newest()
    topic.start, topic.records = start, [(b"task c 5", b"another")]
    assert snapshots.newest() == {b"task c 5": b"another"}
    assert topic.read_offsets == [(0, 4), (start, start + 1)]


def test_forgotten_snapshots_are_read_again(topic: FakeTopic, snapshots: PublishedSnapshots) -> None:
    snapshots.newest()
    snapshots.forget()
    assert snapshots.newest() == {b"task c 0": b"new", b"task c 1": b"its"}
    assert topic.read_offsets == [(0, 4), (0, 4)]
