"""The queues of a producer with fan-out: fair shares, held partitions, order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.ids import TopicPartition
from millstream.drivers.kafka.fanout.producer_sessions import Outgoing
from millstream.drivers.kafka.fanout.record_queues import RecordQueues


def records(partition: int, count: int) -> list[Outgoing]:
    return [
        Outgoing(TopicPartition("topic", partition), None, b"%d" % n, 0, None, None) for n in range(count)
    ]


def queues_of(*counts: int) -> RecordQueues:
    queues = RecordQueues()
    for partition, count in enumerate(counts):
        queues.add(records(partition, count))
    return queues


def shares(taken: list[Outgoing]) -> dict[int, int]:
    return dict(Counter(record.topic_partition.partition for record in taken))


def test_a_hot_partition_does_not_take_the_share_of_the_others() -> None:
    """The first partition with enough records filled every transaction."""
    queues = queues_of(10_000, 30, 10_000)
    assert shares(queues.take(1_000, held=())) == {0: 485, 1: 30, 2: 485}
    assert shares(queues.take(1_000, held=())) == {0: 500, 2: 500}


def test_partitions_that_are_held_back_have_no_share() -> None:
    queues = queues_of(10, 10)
    assert shares(queues.take(100, held={0})) == {1: 10}
    assert queues.take(100, held={0}) == []
    assert (queues.has_records({0}), queues.has_records(())) == (False, True)


def test_more_partitions_than_records_in_a_transaction_are_no_obstacle() -> None:
    assert sum(shares(queues_of(*[2] * 20).take(7, held=())).values()) == 7


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.lists(st.integers(1, 12), max_size=9))
def test_all_records_are_taken_in_the_order_of_their_partition(counts: list[int], sizes: list[int]) -> None:
    queues = queues_of(*counts)
    taken: list[Outgoing] = []
    for size in sizes:
        again = queues.take(size, held=())
        queues.put_back(again)
        assert queues.take(size, held=()) == again
        taken += again
    taken += queues.take_all()
    assert not queues.has_records(())
    for partition, count in enumerate(counts):
        of_partition = [r.value for r in taken if r.topic_partition.partition == partition]
        assert of_partition == [b"%d" % n for n in range(count)]
