"""Which offsets of an application's progress are committed to a consumer group."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millstream.core.model.errors import BrokerUnavailableError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.edge.broker.group_offsets import GroupOffsets

FIRST, SECOND = TopicPartition("in", 0), TopicPartition("in", 1)


class FakeGroup:
    """The offsets of a group, on a broker that can be unavailable."""

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets = dict(offsets)
        self.away = False
        self.deleted = ""
        self.asked = 0
        self.renewed: list[Mapping[str, int]] = []

    def commit(
        self, offsets: Mapping[TopicPartition, int], taken: Mapping[TopicPartition, int] | None = None
    ) -> None:
        self._answer()
        self.offsets.update(
            {partition: n for partition, n in offsets.items() if partition.topic != self.deleted}
        )
        if any(partition.topic == self.deleted for partition in offsets):
            raise TopicNotFoundError("there is no such topic")

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        self._answer()
        self.asked += 1
        return {
            topic: {
                partition: self.offsets[topic_partition]
                for partition in range(count)
                if (topic_partition := TopicPartition(topic, partition)) in self.offsets
            }
            for topic, count in partitions.items()
        }

    def renew(self, partitions: Mapping[str, int]) -> None:
        self._answer()
        self.renewed.append(partitions)

    def _answer(self) -> None:
        if self.away:
            raise BrokerUnavailableError("nobody there")


def test_a_repeated_micro_batch_that_finishes_less_does_not_move_offsets_back() -> None:
    broker = FakeGroup({FIRST: 557})
    group = GroupOffsets(broker)
    for offset, committed in ((296, 557), (296, 557), (557, 557), (600, 600)):
        group.commit({FIRST: offset, SECOND: offset})
        group.planned({"in": {0: 800, 1: 800}})
        assert broker.offsets == {FIRST: committed, SECOND: offset}
    assert broker.asked == 1


def test_offsets_do_not_move_back_when_a_restarted_query_repeats_a_micro_batch() -> None:
    broker = FakeGroup({})
    group = GroupOffsets(broker)
    for offset in (10, 20):
        group.commit({FIRST: offset})
        group.planned({"in": {0: 30}})
    group.query_starts()
    for offset, committed in ((15, 20), (18, 20), (25, 25), (24, 24)):
        group.commit({FIRST: offset})
        group.planned({"in": {0: 30}})
        assert broker.offsets == {FIRST: committed}


def test_offsets_beyond_the_read_positions_are_kept_until_those_positions_are_known() -> None:
    broker = FakeGroup({FIRST: 5_000, SECOND: 5_000})
    group = GroupOffsets(broker)
    group.commit({FIRST: 10})
    assert broker.offsets == {FIRST: 5_000, SECOND: 5_000}
    group.planned({"in": {0: 20}})
    group.commit({FIRST: 12, SECOND: 7})
    assert broker.offsets == {FIRST: 12, SECOND: 7}


def test_offsets_move_back_if_the_topic_was_recreated_and_is_shorter() -> None:
    broker = FakeGroup({FIRST: 5_000})
    group = GroupOffsets(broker)
    group.commit({FIRST: 10})
    group.planned({"in": {0: 10}})
    group.commit({FIRST: 11})
    group.commit({FIRST: 9})
    assert broker.offsets == {FIRST: 9}


def test_offsets_that_could_not_be_committed_are_committed_the_next_time() -> None:
    broker = FakeGroup({FIRST: 100})
    group = GroupOffsets(broker)
    broker.away = True
    with pytest.raises(BrokerUnavailableError):
        group.commit({FIRST: 90, SECOND: 3})
    broker.away = False
    group.commit({SECOND: 4})
    assert broker.offsets == {FIRST: 100, SECOND: 4}
    group.commit({})
    assert broker.offsets == {FIRST: 100, SECOND: 4}


def test_offsets_that_could_not_be_committed_do_not_move_offsets_back_later() -> None:
    broker = FakeGroup({FIRST: 100, SECOND: 900})
    group = GroupOffsets(broker)
    broker.away = True
    with pytest.raises(BrokerUnavailableError):
        group.commit({FIRST: 90})
    group.planned({"in": {0: 120, 1: 120}})
    broker.away = False
    group.commit({})
    assert broker.offsets == {FIRST: 100, SECOND: 900}
    group.planned({"in": {0: 120, 1: 120}})
    group.commit({FIRST: 101, SECOND: 90})
    assert broker.offsets == {FIRST: 101, SECOND: 90}


def test_an_application_that_starts_over_moves_its_offsets_back() -> None:
    broker = FakeGroup({FIRST: 5_000})
    group = GroupOffsets(broker)
    group.planned({"in": {0: 0}})
    group.commit({FIRST: 10})
    assert broker.offsets == {FIRST: 10}
    assert broker.asked == 0


def test_offsets_committed_by_others_are_reported_once() -> None:
    broker = FakeGroup({})
    group = GroupOffsets(broker)
    assert group.by_others() == {}
    group.commit({FIRST: 10, SECOND: 20})
    assert group.by_others() == {}
    broker.offsets[SECOND] = 25
    assert group.by_others() == {SECOND: (20, 25)}
    assert group.by_others() == {}
    group.commit({SECOND: 30})
    del broker.offsets[SECOND]
    assert group.by_others() == {}  # the topic was deleted, with its offsets


def test_offsets_of_a_commit_without_an_answer_are_not_attributed_to_others() -> None:
    broker = FakeGroup({})
    group = GroupOffsets(broker)
    group.commit({FIRST: 10})
    broker.away = True
    with pytest.raises(BrokerUnavailableError):
        group.commit({FIRST: 11})
    broker.away, broker.offsets[FIRST] = False, 11
    assert group.by_others() == {}


def test_offsets_are_renewed_so_that_those_of_idle_partitions_do_not_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group has no members, so a broker deletes each offset a week after its commit, even if others were committed since."""
    broker, now = FakeGroup({FIRST: 5, SECOND: 7}), [100.0]
    monkeypatch.setattr("millstream.edge.broker.group_offsets.time.monotonic", lambda: now[0])
    group = GroupOffsets(broker)
    for seconds in (0, 1, 3_500, 200, 3_500):
        now[0] += seconds
        group.renew({"in": {0: 5, 1: 7}, "empty": {}})
    assert broker.renewed == [{"in": 2}, {"in": 2}]
    broker.away = True
    now[0] += 3_600
    with pytest.raises(BrokerUnavailableError):
        group.renew({"in": {0: 5}})


def test_offsets_of_a_topic_that_was_deleted_meanwhile_are_dropped() -> None:
    """A topic of a pattern may be deleted while a micro-batch processes its last records. The broker commits the other offsets."""
    broker = FakeGroup({})
    group = GroupOffsets(broker)
    broker.deleted = "gone"
    group.commit({FIRST: 5, TopicPartition("gone", 0): 9})
    assert broker.offsets == {FIRST: 5}
    assert group.by_others() == {}
    broker.deleted = ""
    group.commit({SECOND: 7})
    assert broker.offsets == {FIRST: 5, SECOND: 7}
