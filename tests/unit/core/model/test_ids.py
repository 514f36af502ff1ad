from __future__ import annotations

import pytest

from millstream.core.model.ids import TaskId, TopicPartition


def test_ids_are_written_as_in_kafka() -> None:
    assert str(TopicPartition("lines-2", 3)) == "lines-2-3"
    assert str(TaskId(1, 12)) == "1_12"


@pytest.mark.parametrize("task", [TaskId(0, 0), TaskId(3, 17)])
def test_a_task_id_is_read_as_it_is_written(task: TaskId) -> None:
    assert TaskId.parse(str(task)) == task


def test_topic_partitions_are_ordered_by_topic_and_then_by_number() -> None:
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]) == [
        TopicPartition("a", 9),
        TopicPartition("a", 10),
        TopicPartition("b", 0),
    ]
