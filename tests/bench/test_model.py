"""The model of one partition on many cores: its fit, its sums, and the page that shows it."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

import pytest
from bench.model import Costs, fitted, micro_batch, record_core_us
from bench.pages import replaced

from bench import model

COSTS = Costs(
    driver=50.0,
    driver_task=0.1,
    logs=20.0,
    executor_logs=80.0,
    job=90.0,
    spark_task=6.0,
    task_core=3.0,
    spark_task_core=40.0,
    executor_core=400.0,
)


def measured(costs: Costs, active: int = 100, spark_tasks: int = 2, executors: int = 0) -> dict[str, Any]:
    """Return what the bench would measure on two cores if the costs were exact."""
    logs = costs.executor_logs if executors else costs.logs
    core = (costs.task_core + costs.driver_task) * active + costs.spark_task_core * spark_tasks
    core += costs.executor_core * executors
    phases = {
        "plan": costs.driver / 2 + costs.driver_task * active,
        "queryPlanning": costs.driver / 2,
        "reads and commit": 0.0,
        "wal": logs / 2,
        "commit": logs / 2,
        "job": costs.job + (costs.spark_task + costs.spark_task_core / 2) * (spark_tasks - 2),
        "JVM": core / 4,
        "Python": core * 3 / 4,
    }
    sizes = {"active": active, "spark_tasks": spark_tasks, "executors": executors}
    return {**sizes, "ms": {phase: [ms, ms * 9, ms * 0.5] for phase, ms in phases.items()}}


def test_costs_are_recovered_from_what_they_cause() -> None:
    scaling = {
        "partitions": [measured(COSTS, active) for active in (1, 10, 100, 1000)],
        "spark-tasks": [measured(COSTS, spark_tasks=number) for number in (2, 8, 32)],
        "executors": [
            measured(COSTS, spark_tasks=max(number, 2), executors=number) for number in (1, 2, 4, 8)
        ],
    }
    assert astuple(fitted(scaling)) == pytest.approx(astuple(COSTS))


def test_the_time_of_a_record_excludes_what_each_micro_batch_costs() -> None:
    batch_s = (50 + 90 + 3 * 16 + 40 * 4) / 1000
    run = {"processor_s_without_start": 2 * batch_s + 5.0, "batches": [{}, {}], "records": 1_000_000}
    assert record_core_us(COSTS, [run]) == pytest.approx(5.0)


def test_a_micro_batch_is_divided_by_the_share_of_the_busiest_worker() -> None:
    alone, four = micro_batch(COSTS, 5.0, 1), micro_batch(COSTS, 5.0, 4)
    assert alone.records == pytest.approx(4 * four.records) == pytest.approx(5_000.0)
    assert alone.tasks == pytest.approx(16 * 3.0 + 40.0)
    assert four.tasks == pytest.approx(4 * 3.0 + 40.0)
    assert four.driver == alone.driver == pytest.approx(50 + 16 * 0.1 + 20)
    assert four.scheduling == pytest.approx(90 + 4 * 6.0)


def test_more_cores_than_one_process_has_are_executors() -> None:
    sixteen = micro_batch(COSTS, 5.0, 16)
    assert sixteen.driver == pytest.approx(50 + 16 * 0.1 + 80)
    assert sixteen.tasks == pytest.approx(3.0 + 40.0 + 400.0 / 8)


def test_the_page_shows_the_model() -> None:
    shown = model.PAGE.read_text()
    results = (json.loads(path.read_text()) for path in (model.SCALING, model.RANGES))
    assert replaced(shown, model.MARK, model.block(*results)) == shown
