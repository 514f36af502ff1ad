"""The queues of a producer with fan-out: fair shares, partitions that are held back, and order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.ids import TopicPartition
from millstream.drivers.kafka.fanout.outgoing_records import Outgoing
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
    """Previously, the first partition with enough records filled every transaction."""
    queues = queues_of(10_000, 30, 10_000)
    assert shares(queues.take(1_000, held=())) == {0: 485, 1: 30, 2: 485}
    assert shares(queues.take(1_000, held=())) == {0: 500, 2: 500}


def test_partitions_that_are_held_back_have_no_share() -> None:
    queues = queues_of(10, 10)
    assert shares(queues.take(100, held={0})) == {1: 10}
    assert queues.take(100, held={0}) == []
    assert (queues.has_records({0}), queues.has_records(())) == (False, True)


def test_a_transaction_may_have_fewer_records_than_there_are_partitions() -> None:
    assert sum(shares(queues_of(*[2] * 20).take(7, held=())).values()) == 7


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.lists(st.integers(1, 12), max_size=9))
def test_all_records_are_taken_in_order_within_each_partition(counts: list[int], sizes: list[int]) -> None:
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


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 8))),
    st.integers(2, 40),
)
def test_a_search_finds_exactly_the_refused_records(
    counts: list[int], bad: set[tuple[int, int]], most: int
) -> None:
    queues, sent, refused = queues_of(*counts), list[tuple[int, int]](), set[tuple[int, int]]()
    while queues.has_records(()):
        taken = queues.take(most, held=())
        names = [(r.topic_partition.partition, int(r.value or b"")) for r in taken]
        if bad.isdisjoint(names):
            queues.sent(taken)
            sent += names
        elif queues.refused(taken) is not None:
            refused.update(names)
    everything = {(partition, n) for partition, count in enumerate(counts) for n in range(count)}
    assert refused == bad & everything
    assert sorted(sent, key=lambda name: name[0]) == sorted(everything - bad)


def test_a_partition_that_is_held_back_during_a_search_does_not_delay_the_others() -> None:
    queues = queues_of(4, 4)
    assert queues.refused(queues.take(8, held=())) is None
    assert shares(queues.take(8, held={0})) == {1: 4}
    queues.add(records(2, 3))
    assert shares(queues.take(8, held={0, 1})) == {2: 3}


def test_a_single_refused_record_among_many_costs_few_transactions() -> None:
    queues, refusals = queues_of(4_096), 0
    while queues.has_records(()):
        taken = queues.take(5_000, held=())
        if b"1000" not in [record.value for record in taken]:
            queues.sent(taken)
        else:
            refusals += 1
            queues.refused(taken)
    assert refusals <= 13
