"""The choice between record queues. Comments show the queues after each step: `in-0: [3, 5]` has two records, and 3 is next."""

from __future__ import annotations

import pytest

from millstream.core.engine.records.queue import MERGED, Chunk, PartitionGroup, QueueId, RecordQueue
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records

A, B, C = (QueueId(TopicPartition("in", number)) for number in range(3))


def chunk(timestamps: list[int], first_offset: int = 0, *, rows: list[int] | None = None) -> Chunk:
    """Return a chunk with its timestamps as values; `rows` selects the raw records that it contains."""
    raw_timestamps = timestamps if rows is None else [0] * (max(rows, default=-1) + 2)
    count = len(raw_timestamps)
    raw = Records(
        [None] * count,
        [b"%d" % t for t in raw_timestamps],
        raw_timestamps,
        list(range(first_offset, first_offset + count)),
    )
    return Chunk(raw, rows, [None] * len(timestamps), list(timestamps), list(timestamps), None)


def filled(**queues: list[int]) -> PartitionGroup:
    """Make a group with the queues a, b and c."""
    group = PartitionGroup({})
    for name, timestamps in queues.items():
        group.queue({"a": A, "b": B, "c": C}[name]).append(chunk(timestamps), len(timestamps))
    return group


def take(group: PartitionGroup) -> tuple[QueueId, list[int]] | None:
    """Take the next run, and return its queue and timestamps."""
    chosen = group.choose()
    if chosen is None:
        return None
    queue, end = chosen
    run = queue.chunks[0].timestamps[queue.index : end]
    queue.remove_before(end)
    return queue.id, run


def draw(group: PartitionGroup) -> dict[str, list[int]]:
    return {
        f"{queue.partition}{queue.id.lane}": [
            t for n, c in enumerate(queue.chunks) for t in c.timestamps[queue.index if n == 0 else 0 :]
        ]
        for queue in group.queues.values()
    }


class TestChoice:
    def test_goes_to_the_queue_with_the_smallest_head(self) -> None:
        group = filled(a=[3, 5], b=[2, 4, 6])
        # in-0: [3, 5]
        # in-1: [2, 4, 6]
        assert take(group) == (B, [2])
        # in-0: [3, 5]
        # in-1: [4, 6]
        assert take(group) == (A, [3])
        # in-0: [5]
        # in-1: [4, 6]
        assert take(group) == (B, [4])
        # in-0: [5]
        # in-1: [6]
        assert draw(group) == {"in-0": [5], "in-1": [6]}
        assert take(group) == (A, [5])
        # in-0: []
        # in-1: [6]
        assert take(group) == (B, [6])
        # in-0: []
        # in-1: []
        assert take(group) is None

    def test_a_run_continues_until_it_passes_the_head_of_another_queue(self) -> None:
        group = filled(a=[1, 2, 3, 9], b=[4, 5], c=[6])
        # in-0: [1, 2, 3, 9]
        # in-1: [4, 5]
        # in-2: [6]
        assert take(group) == (A, [1, 2, 3])
        # in-0: [9]
        # in-1: [4, 5]
        # in-2: [6]
        assert take(group) == (B, [4, 5])
        # in-0: [9]
        # in-1: []
        # in-2: [6]
        assert take(group) == (C, [6])
        # in-0: [9]
        # in-1: []
        # in-2: []
        assert take(group) == (A, [9])

    def test_a_tie_goes_to_the_smaller_partition(self) -> None:
        group = filled(b=[5, 5, 6], a=[5, 5, 5, 7])
        # in-1: [5, 5, 6]
        # in-0: [5, 5, 5, 7]
        assert take(group) == (A, [5, 5, 5])  # a run ends behind its ties with a larger partition
        # in-1: [5, 5, 6]
        # in-0: [7]
        assert take(group) == (B, [5, 5, 6])
        # in-1: []
        # in-0: [7]
        assert take(group) == (A, [7])

    def test_a_run_ends_before_a_tie_with_a_smaller_partition(self) -> None:
        group = filled(a=[5], b=[3, 5, 5])
        # in-0: [5]
        # in-1: [3, 5, 5]
        assert take(group) == (B, [3])
        # in-0: [5]
        # in-1: [5, 5]
        assert take(group) == (A, [5])
        # in-0: []
        # in-1: [5, 5]
        assert take(group) == (B, [5, 5])

    def test_records_of_one_queue_keep_their_order(self) -> None:
        group = filled(a=[9, 1, 2], b=[5])
        # in-0: [9, 1, 2]
        # in-1: [5]
        assert take(group) == (B, [5])
        # in-0: [9, 1, 2]
        # in-1: []
        assert take(group) == (A, [9, 1, 2])

    def test_a_late_record_stays_in_the_run(self) -> None:
        group = filled(a=[2, 1, 0, 4], b=[3])
        # in-0: [2, 1, 0, 4]
        # in-1: [3]
        assert take(group) == (A, [2, 1, 0])
        # in-0: [4]
        # in-1: [3]
        assert take(group) == (B, [3])

    def test_a_run_ends_with_its_chunk(self) -> None:
        group = filled(a=[1, 2])
        group.queue(A).append(chunk([3, 4], 2), 4)
        # in-0: [1, 2 | 3, 4]
        assert take(group) == (A, [1, 2])
        # in-0: [3, 4]
        assert draw(group) == {"in-0": [3, 4]}
        assert take(group) == (A, [3, 4])
        # in-0: []
        assert group.choose() is None

    def test_lanes_of_one_partition_are_merged_by_time(self) -> None:
        group = PartitionGroup({})
        left, right = QueueId(A.partition, "x-0"), QueueId(A.partition, "x-1")
        group.queue(right).append(chunk([1, 4]), 2)
        group.queue(left).append(chunk([1, 3]), 2)
        # in-0 x-1: [1, 4]
        # in-0 x-0: [1, 3]
        assert [take(group) for _ in range(4)] == [(left, [1]), (right, [1]), (left, [3]), (right, [4])]

    def test_ties_are_broken_by_topic_and_then_by_partition_number(self) -> None:
        group = PartitionGroup({})
        ids = [
            QueueId(TopicPartition("b", 0)),
            QueueId(TopicPartition("a", 9)),
            QueueId(TopicPartition("a", 10)),
        ]
        for queue_id in ids:
            group.queue(queue_id).append(chunk([1]), 1)
        # b-0: [1]
        # a-9: [1]
        # a-10: [1]
        assert [take(group) for _ in range(3)] == [(ids[1], [1]), (ids[2], [1]), (ids[0], [1])]

    def test_is_none_when_all_queues_are_empty(self) -> None:
        assert PartitionGroup({}).choose() is None
        assert filled(a=[]).choose() is None


class TestQueue:
    def test_partition_time_is_the_largest_timestamp_removed_so_far(self) -> None:
        queue = RecordQueue(A, partition_time=4)
        queue.append(chunk([3, 9, 5]), 3)
        assert (queue.partition_time, queue.newest_timestamp()) == (4, 9)
        queue.remove_before(1)
        assert queue.partition_time == 4
        queue.remove_before(3)
        assert queue.partition_time == queue.newest_timestamp() == 9

    def test_removing_no_records_changes_nothing(self) -> None:
        queue = RecordQueue(A)
        queue.append(chunk([3]), 1)
        queue.remove_before(0)
        assert (queue.partition_time, queue.index, queue.head_time()) == (-1, 0, 3)

    def test_committable_is_the_offset_of_the_head_or_the_position(self) -> None:
        queue = RecordQueue(A)
        assert queue.committable() is None
        queue.append(chunk([1, 2], first_offset=7), 9)
        queue.append(chunk([3], first_offset=9), 12)  # offsets 10 and 11 have no record
        # in-0: [1, 2 | 3]
        assert queue.committable() == 7
        queue.remove_before(1)
        # in-0: [2 | 3]
        assert queue.committable() == 8
        queue.remove_before(2)
        # in-0: [3]
        assert queue.committable() == 9
        queue.remove_before(1)
        # in-0: []
        assert queue.committable() == 12

    def test_a_position_without_records_is_committable(self) -> None:
        queue = RecordQueue(A)
        queue.append(chunk([], first_offset=0), 5)
        assert (queue.committable(), len(queue.chunks)) == (5, 0)

    def test_the_committable_offset_passes_skipped_records_up_to_the_next_record(self) -> None:
        queue = RecordQueue(A)
        queue.append(chunk([5, 6], first_offset=10, rows=[1, 3]), 15)  # offsets 10, 12 and 14 were skipped
        assert queue.committable() == 11
        queue.remove_before(1)
        assert queue.committable() == 13
        queue.remove_before(2)
        assert queue.committable() == 15

    def test_the_offsets_of_a_lane_are_not_committable(self) -> None:
        queue = RecordQueue(QueueId(A.partition, "x-0"))
        queue.append(chunk([1]), 1)
        assert queue.committable() is None

    def test_the_smallest_remaining_offset_of_merged_records_is_committable(self) -> None:
        queue = RecordQueue(QueueId(A.partition, MERGED))
        merged = chunk([1, 2, 3])
        merged.raw.offsets = [4, 9, 5]
        queue.append(merged, 10)
        for taken, committable in ((1, 5), (2, 5), (3, 10)):
            queue.remove_before(taken)
            assert queue.committable() == committable

    def test_buffered_records_are_returned_as_they_were_fed(self) -> None:
        queue = RecordQueue(A)
        queue.append(chunk([1, 2], first_offset=0), 2)
        queue.append(chunk([0, 0], first_offset=2, rows=[1, 2]), 6)
        queue.remove_before(1)
        # in-0: [2 | 0, 0]
        left = queue.buffered()
        assert (left.offsets, left.timestamps, left.values) == ([1, 3, 4], [2, 0, 0], [b"2", b"0", b"0"])

    @pytest.mark.parametrize("taken", [0, 1, 2, 3])
    def test_the_group_counts_the_remaining_records(self, taken: int) -> None:
        group = filled(a=[1, 2], b=[3])
        for _ in range(taken):
            queue, _ = group.choose()  # type: ignore[misc]
            queue.remove_before(queue.index + 1)
        assert group.buffered_count() == 3 - taken
