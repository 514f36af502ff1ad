"""The interface of a task: feed, step, snapshot, and continuing from a snapshot."""

from __future__ import annotations

import time
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.records.merging import WRITER_HEADER, merged_by_time
from millstream.core.engine.records.queue import MERGED, QueueId
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.state.memory import MemoryStores
from unit.helpers import Host, forwarding, processing, processor_topology, records, sent, values


def upper() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("out")
    return builder.build()


def part_of(written: list[tuple[int, bytes, int]]) -> Records:
    """Build a part of a repartition topic: the offset, writer and time of each record."""
    offsets, writers, timestamps = map(list, zip(*written))
    names = [b"r%d" % offset for offset in offsets]
    headers = [((WRITER_HEADER, writer),) for writer in writers]
    return Records([None] * len(names), names, timestamps, offsets, headers)


def times() -> ms.Topology:
    """Forward what each record sees: its position, its timestamp and stream time."""
    return processor_topology(
        forwarding(
            lambda context, record: "{}-{}@{} t={} stream={}".format(
                *context.record_metadata, record.timestamp, context.stream_time_ms
            )
        ),
        topics=["in", "other"],
    )


class TestFeedAndStep:
    def test_a_step_processes_the_fed_records(self) -> None:
        outcome = Host(upper()).run("in", ("a", "x", 1), (None, "y", 2))
        assert sent(outcome) == [("a", "X", 1), (None, "Y", 2)]
        assert outcome.committable == {TopicPartition("in", 0): 2}
        assert (outcome.metrics.processed, outcome.stream_time_ms) == (2, 2)
        assert (outcome.changes, outcome.wake_at_ms, outcome.notices) == ({}, None, ())

    def test_a_step_without_records_does_nothing(self) -> None:
        outcome = Host(upper()).step(now_ms=5)
        assert (outcome.sends, outcome.committable, outcome.stream_time_ms) == ((), {}, -1)

    def test_a_step_returns_only_its_own_results(self) -> None:
        host = Host(upper())
        assert values(host.run("in", (None, "a", 0))) == ["A"]
        assert values(host.run("in", (None, "b", 0))) == ["B"]
        assert values(host.step()) == []

    def test_a_budget_limits_the_records_of_a_step(self) -> None:
        host = Host(upper())
        host.feed("in", [(None, letter, n) for n, letter in enumerate("abcd")])
        outcome = host.step(budget=3)
        assert (values(outcome), outcome.committable) == (["A", "B", "C"], {TopicPartition("in", 0): 3})
        assert host.task.buffered_count() == 1
        assert values(host.step(budget=0)) == []
        assert values(host.step(budget=3)) == ["D"]

    def test_a_budget_counts_across_queues_and_chunks(self) -> None:
        host = Host(upper())
        host.feed("in", [(None, "a", 1), (None, "c", 3)])
        host.feed("in", [(None, "b", 2), (None, "e", 5)], partition=1)
        host.feed("in", [(None, "d", 4)])
        # in-0: [1, 3 | 4]
        # in-1: [2, 5]
        assert values(host.step(budget=4)) == ["A", "B", "C", "D"]
        # in-0: []
        # in-1: [5]
        assert values(host.step(budget=4)) == ["E"]

    def test_the_records_of_a_batch_are_merged_by_time(self) -> None:
        host = Host(times())
        host.feed("other", [(None, "", 2), (None, "", 4)])
        host.feed("in", [(None, "", 3), (None, "", 1)])
        # in-0: [3, 1]
        # other-0: [2, 4]
        assert values(host.step()) == [
            "other-0@0 t=2 stream=2",
            "in-0@0 t=3 stream=3",
            "in-0@1 t=1 stream=3",
            "other-0@1 t=4 stream=4",
        ]

    def test_feeding_records_of_a_topic_that_the_task_does_not_read_is_refused(self) -> None:
        with pytest.raises(
            StoreError, match="task 0_0 was fed records of elsewhere-3, which is not one of its topics"
        ):
            Host(upper()).feed("elsewhere", [(None, "x", 0)], partition=3)

    def test_a_position_behind_the_last_record_is_committed(self) -> None:
        host = Host(upper())
        host.task.feed(TopicPartition("in", 0), records([("a", "x", 0)], 4), 9)
        assert host.step().committable == {TopicPartition("in", 0): 9}

    def test_a_position_without_records_is_committed(self) -> None:
        host = Host(upper())
        host.task.feed(TopicPartition("in", 0), records([]), 9)
        assert host.step().committable == {TopicPartition("in", 0): 9}

    def test_offsets_of_lanes_are_not_committed(self) -> None:
        host = Host(upper())
        host.feed("in", [(None, "b", 2)], lane="x-1")
        host.feed("in", [(None, "a", 1), (None, "c", 3)], lane="x-0")
        # in-0 x-1: [2]
        # in-0 x-0: [1, 3]
        outcome = host.step()
        assert (values(outcome), outcome.committable) == (["A", "B", "C"], {})

    def test_headers_are_passed_on(self) -> None:
        host = Host(upper())
        host.feed("in", [(None, "a", 0, (("h", b"1"), ("h", None))), (None, "b", 0)])
        ((_, columns),) = host.step().sends
        assert columns.headers == [(("h", b"1"), ("h", None)), ()]

    def test_a_step_returns_one_change_per_key(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().count(store="counts")
        host = Host(builder.build())
        host.feed("in", [("a", "x", 0)] * 5 + [("b", "x", 0)])
        changes = host.step().changes
        assert [key for key, _ in changes["counts"]] == [b"a", b"b"]
        assert host.store("counts").get("a") == ms.ValueAndTimestamp(5, 0)


class TestTime:
    def test_stream_time_is_the_largest_timestamp_taken_so_far(self) -> None:
        host = Host(times())
        assert values(host.run("in", (None, "", 5), (None, "", 3))) == [
            "in-0@0 t=5 stream=5",
            "in-0@1 t=3 stream=5",
        ]
        assert host.run("in", (None, "", 4)).stream_time_ms == 5
        assert host.run("other", (None, "", 6)).stream_time_ms == 6

    def test_the_wall_clock_is_the_time_passed_to_the_step(self) -> None:
        host = Host(processor_topology(forwarding(lambda context, record: str(context.wall_clock_ms))))
        host.feed("in", [(None, "", 0)])
        assert values(host.step(now_ms=77)) == ["77"]

    def test_partition_times_and_stream_time_survive_a_restart(self) -> None:
        host = Host(times())
        host.feed("in", [(None, "", 9), (None, "", 2)])
        host.feed("in", [(None, "", 4)], partition=1)
        host.step()
        snapshot = host.task.snapshot()
        assert snapshot.stream_time_ms == 9
        assert {str(q.partition): time for q, time in snapshot.partition_times.items()} == {
            "in-0": 9,
            "in-1": 4,
        }
        host.restart()
        assert host.task.snapshot() == snapshot
        assert values(host.run("in", (None, "", 1))) == ["in-0@2 t=1 stream=9"]


class TestSnapshot:
    def test_of_a_new_task_is_empty(self) -> None:
        assert Host(upper()).task.snapshot() == type(Host(upper()).task.snapshot())()

    def test_buffered_records_are_processed_by_the_next_task(self) -> None:
        host = Host(times())
        host.feed("in", [(None, "", 1), (None, "", 3), (None, "", 5)])
        host.feed("other", [(None, "", 2), (None, "", 4)])
        # in-0: [1, 3, 5]
        # other-0: [2, 4]
        assert len(values(host.step(budget=2))) == 2
        host.restart()
        # in-0: [3, 5]
        # other-0: [4]
        assert host.task.buffered_count() == 3
        outcome = host.step()
        assert values(outcome) == ["in-0@1 t=3 stream=3", "other-0@1 t=4 stream=4", "in-0@2 t=5 stream=5"]
        assert outcome.committable == {TopicPartition("in", 0): 3, TopicPartition("other", 0): 2}

    def test_lanes_headers_and_positions_survive_a_restart(self) -> None:
        host = Host(upper())
        host.feed("in", [(None, "b", 2, (("h", b"1"),))], lane="x-1")
        host.feed("in", [(None, "a", 1)], lane="x-0")
        host.task.feed(TopicPartition("in", 1), records([(None, "c", 3)]), 8)
        host.restart()
        outcome = host.step()
        assert values(outcome) == ["A", "B", "C"]
        assert outcome.sends[0][1].headers == [(), (("h", b"1"),), ()]
        assert outcome.committable == {TopicPartition("in", 1): 8}

    def test_a_rebuilt_task_does_not_process_records_of_a_merged_queue_again(self) -> None:
        host, topic_partition = Host(upper()), TopicPartition("in", 0)

        def fed(offsets: list[int]) -> Records:
            names = [b"r%d" % offset for offset in offsets]
            return Records([None] * len(offsets), names, [10 * n for n in range(len(offsets))], offsets)

        host.task.feed(topic_partition, fed([1, 3, 0, 2]), 4, lane=MERGED)
        outcome = host.step(budget=2)
        assert (values(outcome), outcome.committable) == (["R1", "R3"], {topic_partition: 0})
        host.restart(lambda snapshot: snapshot.without_committed())
        host.task.feed(
            topic_partition, fed([0, 2, 1, 3, 4]), 5, lane=MERGED
        )  # read again from the committed offset
        outcome = host.step()
        assert (values(outcome), outcome.committable) == (["R0", "R2", "R4"], {topic_partition: 5})

    def test_a_rebuilt_task_skips_processed_records_in_every_merged_part(self) -> None:
        """A part may have offsets far before and after its position, because the parts are ordered by time."""
        topic_partition, old_snapshot = (
            TopicPartition("in", 0),
            Snapshot(taken={QueueId(TopicPartition("in", 0), MERGED): 20}),
        )
        host = Host(upper())
        host.restart(lambda _: old_snapshot)
        written = [(offset, b"0_0", 100 + offset) for offset in range(20)]
        written += [(offset, b"0_1", offset) for offset in range(20, 40)]
        parts = list(merged_by_time([part_of(written[:20]), part_of(written[20:])]))
        for number, part in enumerate(parts, 1):
            host.task.feed(topic_partition, part, 20 * number, lane=MERGED)
        outcome = host.step()
        assert values(outcome) == [f"R{offset}" for offset in range(20, 40)]
        assert (outcome.committable, host.task.snapshot().taken) == ({topic_partition: 40}, {})

    def test_a_task_can_be_restarted_after_every_record(self) -> None:
        host = Host(times())
        host.feed("in", [(None, "", t) for t in (4, 1, 7)])
        host.feed("other", [(None, "", t) for t in (3, 5)])
        seen = []
        while host.task.buffered_count():
            seen.extend(values(host.step(budget=1)))
            host.restart()
        assert seen == [
            "other-0@0 t=3 stream=3",
            "in-0@0 t=4 stream=4",
            "in-0@1 t=1 stream=4",
            "other-0@1 t=5 stream=5",
            "in-0@2 t=7 stream=7",
        ]


class TestMetadata:
    def test_is_that_of_the_record_and_none_in_init(self) -> None:
        seen: list[Any] = []

        def init(context: ms.ProcessorContext) -> None:
            seen.append(
                (context.record_metadata, context.stream_time_ms, context.application_id, context.task_id)
            )

        host = Host(
            processor_topology(
                processing(lambda context, record: seen.append(context.record_metadata), init=init)
            )
        )
        host.feed("in", [(None, "", 0)], partition=2)
        host.step()
        assert seen == [(None, -1, "app", ms.TaskId(0, 0)), ms.RecordMetadata("in", 2, 0)]

    def test_belongs_to_the_raw_record_when_others_were_skipped(self) -> None:
        host = Host(times(), policies=ms.ErrorPolicies(deserialize="skip"))
        host.feed("in", [(None, b"\xff", 0), (None, "", 1), (None, b"\xff", 2), (None, "", 3)])
        assert values(host.step()) == ["in-0@1 t=1 stream=1", "in-0@3 t=3 stream=3"]


def test_stores_are_read_from_committed_changes() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts")
    sub = builder.build().plan("app").subtopologies[0]
    committed = MemoryStores()
    for _ in range(2):  # the second attempt does not see changes of the first
        task = Task(sub, TaskId(0, 0), application_id="app", stores=committed)
        task.init(0)
        task.feed(TopicPartition("in", 0), records([("a", "x", 0)]), 1)
        changes = task.step(0).changes
    committed.apply(changes)
    counts = committed.open("counts")
    assert counts.approximate_count() == 1
    assert next(counts.scan(None, None))[1][-1] == 1


def test_the_cost_of_inputs_that_alternate_in_time_is_not_quadratic() -> None:
    def seconds(count: int) -> float:
        """Process two topics that alternate record by record; return the shortest processor time of three runs."""
        durations = []
        for _ in range(3):
            host = Host(processor_topology(processing(lambda context, record: None), topics=["a", "b"]))
            for first, topic in enumerate("ab"):
                times = range(first, 2 * count, 2)
                rows = Records([b"k"] * count, [b"v"] * count, list(times), list(range(count)), None)
                host.task.feed(TopicPartition(topic, 0), rows, count)
            begin = time.process_time()
            host.task.step(0)
            durations.append(time.process_time() - begin)
        return min(durations)

    assert seconds(16_000) < 10 * seconds(
        4_000
    )  # four times as many records; quadratic would be sixteen times
