"""The size of records that is assumed before a task has reported one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.spark.planner.repartitions import RECORDS_OF_UNKNOWN_SIZE, RecordSizes

MANY = RECORDS_OF_UNKNOWN_SIZE + 1


class FakeFetcher:
    """A fetcher that knows the size of each topic's records."""

    def __init__(self, sizes: dict[str, float | None]) -> None:
        self.sizes = sizes
        self.sampled: list[OffsetRange] = []

    def connect(self) -> None:
        raise AssertionError("nobody connects to sample")

    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        raise AssertionError("nobody reads whole ranges to sample")

    def fetch_all(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, Iterator[Records]]]:
        for planned in ranges:
            yield planned, self.fetch(planned)

    def sample_bytes(self, planned: OffsetRange) -> float | None:
        self.sampled.append(planned)
        return self.sizes[planned.topic]


def test_the_size_that_tasks_have_reported_is_used() -> None:
    samples = FakeFetcher({})
    assert RecordSizes(samples).per_record(12.5, {"t": {0: 0}}, {"t": {0: MANY}}) == 12.5
    assert not samples.sampled


def test_a_few_waiting_records_are_not_sampled() -> None:
    samples = FakeFetcher({"t": 10.0})
    assert RecordSizes(samples).per_record(None, {"t": {0: 0}}, {"t": {0: MANY - 1}}) is None
    assert not samples.sampled


def test_the_largest_partition_of_each_topic_is_sampled_once_and_the_largest_records_count() -> None:
    samples = FakeFetcher({"t": 10.0, "u": 30.0})
    sizes = RecordSizes(samples)
    start, end = {"t": {0: 0, 1: 5}, "u": {0: 0}}, {"t": {0: 10, 1: MANY}, "u": {0: 7}}
    assert sizes.per_record(None, start, end) == 30.0
    assert sizes.per_record(None, start, end) == 30.0
    assert sorted(samples.sampled) == [OffsetRange("t", 1, 5, MANY), OffsetRange("u", 0, 0, 7)]


@pytest.mark.parametrize("unknown", [{"t": None}, {"t": 10.0, "u": None}])
def test_a_topic_that_cannot_be_read_leaves_the_size_unknown(unknown: dict[str, float | None]) -> None:
    end = {topic: {0: MANY} for topic in unknown}
    assert (
        RecordSizes(FakeFetcher(unknown)).per_record(None, {topic: {0: 0} for topic in unknown}, end) is None
    )
