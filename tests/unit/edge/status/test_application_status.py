"""The status and the metrics of an application, which follow from the reports of its tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

import millstream as ms
from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.core.metrics.metric import Number
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.runtime.task_report import CallReport, TaskReport
from millstream.core.topology.analysis.ranges import divided_plan
from millstream.drivers.spark.executor.restore_progress import RestoreProgress
from millstream.edge.status.application_status import ThreadStatus
from millstream.edge.status.task_reports import TaskReports

HALF_RESTORED = RestoreProgress("0_1", "counts", "the local copy is missing", None, 9, 50, 100, 1.0)


def drops(task: str, reason: str, count: int) -> Number:
    return "task_dropped_records_total", (task, reason), count


def restoring(task_reports: TaskReports) -> list[str]:
    return list(task_reports.status("starting", None).restoring)


def test_restores_are_shown_while_they_run() -> None:
    task_reports = TaskReports()
    other = replace(HALF_RESTORED, task="0_0")
    for progress in (replace(HALF_RESTORED, done=1), other, HALF_RESTORED):
        task_reports.restoring(progress)
    assert restoring(task_reports) == [other.line(), HALF_RESTORED.line()]
    task_reports.restoring(replace(HALF_RESTORED, finished=True))
    assert restoring(task_reports) == [other.line()]


def test_restores_of_a_failed_attempt_end_with_the_micro_batch() -> None:
    task_reports = TaskReports()
    task_reports.restoring(HALF_RESTORED)
    task_reports.record_batch(1, [])
    assert restoring(task_reports) == []


def test_any_task_of_the_last_micro_batch_can_request_a_commit() -> None:
    task_reports = TaskReports()
    asking = TaskReport.decode(TaskReport("0_0", commit_requested=True).encode())
    task_reports.record_batch(0, [asking, TaskReport("1_0")])
    assert task_reports.commit_requested
    task_reports.record_batch(1, [TaskReport("0_0"), TaskReport("1_0")])
    assert not task_reports.commit_requested


def test_the_last_executor_of_each_task_is_shown_and_moves_are_counted() -> None:
    task_reports = TaskReports()
    task_reports.record_batch(
        0, [TaskReport("0_0", executor="h/0"), TaskReport("0_1", executor="h/1"), TaskReport("1_0")]
    )
    task_reports.record_batch(1, [TaskReport("0_0", executor="h/0"), TaskReport("0_1", executor="h/0")])
    assert task_reports.status("running", None).placed == {"0_0": "h/0", "0_1": "h/0"}
    assert (task_reports.metrics()["task_runs"], task_reports.metrics()["moved_tasks"]) == (4, 1)
    task_reports.record_batch(2, [TaskReport("0_0", gone=True), TaskReport("0_1", executor="g/2")])
    assert task_reports.status("running", None).placed == {"0_1": "g/2"}
    assert (task_reports.metrics()["task_runs"], task_reports.metrics()["moved_tasks"]) == (5, 2)


def test_dropped_records_are_counted_by_task_and_by_reason() -> None:
    task_reports = TaskReports()
    late, null = "late for a window", "null key in a table"
    task_reports.record_batch(0, [TaskReport("0_0", measured=[drops("0_0", late, 2)]), TaskReport("1_0")])
    task_reports.record_batch(1, [TaskReport("1_0", measured=[drops("1_0", null, 1)])])
    task_reports.record_batch(2, [TaskReport("0_0", measured=[drops("0_0", null, 1)])])
    assert task_reports.status("running", None).dropped == {"0_0": 3, "1_0": 1}
    counted = task_reports.metrics()
    assert counted["dropped_records"] == 4
    assert counted["dropped_records: late for a window"] == 2
    assert counted["dropped_records: null key in a table"] == 2


def test_dropped_records_of_global_topics_are_not_counted_for_the_task_that_reports_them() -> None:
    task_reports = TaskReports()
    dropped = [drops("2_0", "null key in a table", 3), drops("0_0", "late for a window", 1)]
    task_reports.record_batch(0, [TaskReport("0_0", measured=dropped)])
    assert task_reports.status("running", None).dropped == {"0_0": 1, "2_0": 3}
    assert task_reports.metrics()["dropped_records"] == 4


def test_a_removed_task_is_no_longer_shown() -> None:
    task_reports = TaskReports()
    state = ("store_bytes", ("0_0", "counts"), 7)
    task_reports.record_batch(
        0, [TaskReport("0_0", measured=[drops("0_0", "null key", 1), state]), TaskReport("1_0")]
    )
    assert task_reports.metrics()["state_bytes"] == 7
    task_reports.record_batch(1, [TaskReport("0_0", measured=[drops("0_0", "null key", 2)], gone=True)])
    assert list(task_reports.tasks) == ["1_0"]
    assert (task_reports.metrics()["dropped_records"], task_reports.metrics()["state_bytes"]) == (3, 0)


def test_a_task_whose_partitions_no_longer_exist_is_no_longer_woken() -> None:
    """For example, a topic of a pattern was deleted, or a topic was created again with fewer partitions."""
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    plan = builder.build().plan("app")
    task_reports = TaskReports(plan=plan)
    task_reports.record_batch(
        0, [TaskReport(task, wake_at_ms=5, executor="here/1") for task in ("0_0", "0_3", "1_3")]
    )
    assert task_reports.due(9) == ["0_0", "0_3", "1_3"]
    task_reports.replan(plan, [TaskId(0, 0), TaskId(0, 1)])
    assert task_reports.due(9) == ["0_0", "1_3"], "the tasks of a sub-topology that is gone say so themselves"
    assert task_reports.status("running", None).placed.keys() == {"0_0", "1_3"}


def test_tasks_from_before_a_division_are_forgotten_because_their_numbers_are_reused() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts")
    plan, (first, second) = builder.build().plan("app"), (TopicPartition("in", 0), TopicPartition("in", 1))
    task_reports = TaskReports(plan=plan)
    task_reports.planned({"in": {0: 0, 1: 0}}, {"in": {0: 9, 1: 9}})
    assert task_reports.record_batch(0, [TaskReport("0_0", {first: 3}), TaskReport("0_1", {second: 2})]) == {
        first: 3,
        second: 2,
    }
    task_reports.replan(divided_plan(plan, 2), [TaskId(0, number) for number in range(32)])
    assert not task_reports.tasks
    reports = [TaskReport(f"0_{number}", {second if number >= 16 else first: 9}) for number in range(32)]
    assert task_reports.record_batch(1, reports) == {first: 9, second: 9}, (
        "task 0_1 now has a range of the first partition"
    )
    task_reports.replan(divided_plan(plan, 2), [TaskId(0, number) for number in range(32)])
    assert len(task_reports.tasks) == 32


def test_counters_add_up_peaks_are_kept_and_gauges_show_the_last_report() -> None:
    task_reports = TaskReports()
    for batch, (processed, peak, size) in enumerate([(3, 9, 100), (4, 5, 80)]):
        numbers: list[Number] = [
            ("task_process_total", ("0_0",), processed),
            ("task_cache_size_bytes_max", (), peak),
            ("store_bytes", ("0_0", "counts"), size),
        ]
        task_reports.record_batch(batch, [TaskReport.decode(TaskReport("0_0", measured=numbers).encode())])
    counted = task_reports.metrics()
    assert (counted["processed_records"], counted["cache_bytes_max"], counted["state_bytes"]) == (7, 9, 80)
    assert task_reports.measured().of("store_bytes") == {("0_0", "counts"): 80}


def test_a_task_has_its_counters_from_its_first_report_on() -> None:
    task_reports = TaskReports()
    task_reports.record_batch(0, [TaskReport("0_0")])
    assert task_reports.measured().of("task_process_total") == {("0_0",): 0}


def test_a_running_restore_shows_its_remaining_records() -> None:
    task_reports = TaskReports()
    task_reports.restoring(HALF_RESTORED)
    assert task_reports.measured().of("task_restore_remaining_records") == {("0_1", "counts"): 50}
    task_reports.record_batch(1, [])
    assert task_reports.measured().of("task_restore_remaining_records") == {}


def test_tasks_that_wait_for_a_time_are_woken_when_the_clock_goes_back() -> None:
    task_reports = TaskReports()
    calls = CallReport(look_at_ms=5_000)
    task_reports.record_batch(
        0,
        [TaskReport("0_0", wake_at_ms=5_000, calls=calls), TaskReport("0_1", calls=calls), TaskReport("0_2")],
    )
    assert task_reports.due(4_000) == []
    assert task_reports.due(1_000) == task_reports.due(1_000) == ["0_0"]
    assert task_reports.due(1_000, resting=[0]) == ["0_0", "0_1"]
    task_reports.record_batch(1, [TaskReport("0_0", wake_at_ms=1_500)])
    assert task_reports.due(1_000) == []


class TestIntake:
    """Partitions are read as far as the tasks that receive their records have room for calls."""

    @staticmethod
    def room(**of_tasks: int) -> dict[TopicPartition, int]:
        """Return the room of each partition. ``in``, with two partitions, and ``more`` are in front of the shuffle to sub-topology 1."""
        task_reports = TaskReports()
        task_reports.planned({"in": {0: 0, 1: 0}, "more": {0: 0}, "other": {0: 0}}, None)
        for task, room in of_tasks.items():
            report = TaskReport(
                task[1:], {TopicPartition("own", int(task[-1])): 7}, calls=CallReport(room=room)
            )
            task_reports.record_batch(0, [report])
        return dict(task_reports.buffered_inputs({1: ["in", "more"]}, now_ms=0).room)

    def test_is_limited_to_the_room_of_the_task_that_reads_the_partition(self) -> None:
        assert self.room(t0_0=100, t0_1=0) == {TopicPartition("own", 0): 100, TopicPartition("own", 1): 0}

    def test_is_shared_by_all_partitions_in_front_of_a_shuffle(self) -> None:
        in_front = (TopicPartition("in", 0), TopicPartition("in", 1), TopicPartition("more", 0))
        shared = self.room(t1_0=30, t1_1=600)
        assert {partition: shared[partition] for partition in in_front} == dict.fromkeys(
            in_front, 2 * 30 // 3
        )

    def test_stops_in_front_of_a_shuffle_when_one_task_is_full(self) -> None:
        full = self.room(t1_0=0, t1_1=600)
        assert (full[TopicPartition("in", 0)], full[TopicPartition("more", 0)]) == (0, 0)

    @pytest.mark.parametrize(("parked", "room"), [(9_999, 300), (10_000, 0)])
    def test_continues_while_one_key_range_is_full_until_it_has_parked_too_many_records(
        self, parked: int, room: int
    ) -> None:
        task_reports = TaskReports()
        full = CallReport(room=0, parked=parked)
        free = CallReport(room=100)
        reports = [
            TaskReport(f"0_{n}", {TopicPartition("own", 0): 7}, calls=full if n == 2 else free)
            for n in range(4)
        ]
        task_reports.record_batch(0, reports)
        assert task_reports.buffered_inputs({}, now_ms=0).room == {TopicPartition("own", 0): room}

    @pytest.mark.parametrize(("now_ms", "room"), [(999, 0), (1_000, 100)])
    def test_pauses_while_the_queued_calls_of_a_task_suffice(self, now_ms: int, room: int) -> None:
        task_reports, partition = TaskReports(), TopicPartition("own", 0)
        report = TaskReport("0_0", {partition: 7}, calls=CallReport(room=100, paced_until_ms=1_000))
        task_reports.record_batch(0, [report])
        assert task_reports.buffered_inputs({}, now_ms).room == {partition: room}


def test_figures_of_threads_are_added_up_per_task() -> None:
    task_reports = TaskReports()
    assert "threads" not in task_reports.metrics()
    first, second = (
        TaskReport("0_0", threads=ThreadFigures((3, 1))),
        TaskReport("0_0", threads=ThreadFigures((1, 1))),
    )
    task_reports.record_batch(0, [first, second, TaskReport("1_0")])
    task_reports.record_batch(1, [TaskReport("0_1", threads=ThreadFigures((5,), ended=2)), TaskReport("0_0")])
    assert task_reports.status("running", None).threads == {
        "0_0": ThreadStatus(2, (4, 2), 0),
        "0_1": ThreadStatus(1, (5,), 2),
    }
    counted = task_reports.metrics()
    assert (counted["threads"], counted["thread_records"], counted["threads_ended"]) == (3, 11, 2)
