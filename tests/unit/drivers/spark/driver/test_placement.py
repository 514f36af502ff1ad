"""Grouping keys: Spark's hash of them assigns tasks to the intended partitions."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from millstream.core.model.ids import TaskId
from millstream.drivers.spark.driver.placement import grouping_keys, spark_hash

TASKS = [TaskId(sub, partition) for sub in range(8) for partition in range(128)]
KEYS = grouping_keys(TASKS)


def test_every_task_has_a_key_of_its_own() -> None:
    assert len(set(KEYS.values())) == len(TASKS)


def test_keys_fit_into_32_bits() -> None:
    assert all(-(1 << 31) <= key < 1 << 31 for key in KEYS.values())


def test_a_key_depends_only_on_its_task() -> None:
    assert grouping_keys([TASKS[77]]) == {TASKS[77]: KEYS[TASKS[77]]}


@pytest.mark.parametrize("shuffle_partitions", [1, 2, 4, 8, 16, 32, 64])
def test_tasks_are_placed_side_by_side_if_the_partition_count_is_a_power_of_two(
    shuffle_partitions: int,
) -> None:
    for task, key in KEYS.items():
        assert (
            spark_hash(key) % shuffle_partitions == (task.subtopology + task.partition) % shuffle_partitions
        )


@pytest.mark.parametrize("shuffle_partitions", [3, 6, 7, 10, 12, 48, 100, 200])
def test_tasks_are_spread_over_other_partition_counts(shuffle_partitions: int) -> None:
    landed = Counter(spark_hash(key) % shuffle_partitions for key in KEYS.values())
    assert max(landed.values()) <= 3 * len(TASKS) / shuffle_partitions


@pytest.mark.parametrize("task", [TaskId(63, 0), TaskId(64, 0), TaskId(71, 5), TaskId(0, 10_000)])
def test_large_task_numbers_have_keys_of_their_own(task: TaskId) -> None:
    assert grouping_keys([task])[task] not in {key for other, key in KEYS.items() if other != task}


@pytest.mark.spark
def test_the_hash_equals_that_of_spark(spark: SparkSession) -> None:
    generator = random.Random(7)
    numbers = [0, 1, -1, (1 << 31) - 1, -(1 << 31), *KEYS.values()]
    numbers += [generator.randrange(-(1 << 31), 1 << 31) for _ in range(1000)]
    rows = (
        spark.createDataFrame([(n,) for n in numbers], "n int").select("n", f.hash("n").alias("h")).collect()
    )
    assert [row.h for row in rows] == [spark_hash(row.n) for row in rows]
