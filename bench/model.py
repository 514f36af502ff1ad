"""``python -m bench.model``: how fast one partition with key ranges would be with more cores than were measured.

The model adds up what a micro-batch costs. Its constants are fitted to ``bench/scaling.json`` and ``bench/ranges.json``, which
``bench.scaling`` and ``bench.ranges`` have written. The command writes its table and its picture into ``docs/reference/scaling.md``; a test
fails if the page does not show them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Any, Final

from bench.pages import replaced
from bench.processes import ROOT
from millstream.core.model.ids import TaskId
from millstream.core.topology.analysis.ranges import ranges_for
from millstream.edge.planning.worker_counts import busiest

PAGE: Final = ROOT / "docs" / "reference" / "scaling.md"
SCALING: Final = ROOT / "bench" / "scaling.json"
RANGES: Final = ROOT / "bench" / "ranges.json"
MARK: Final = "model"

CORES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RECORDS: Final = 1_000_000
"""Records of a micro-batch."""
CORES_PER_EXECUTOR: Final = 8
_MEASURED_WORKERS: Final = 4
"""Workers of the runs with key ranges: the default of ``bench.ranges``."""
_DRIVER_PHASES: Final = ("plan", "queryPlanning", "reads and commit")
_LOG_PHASES: Final = ("wal", "commit")
_JOBS: Final = {"count": "`count`", "busy-processor": "50 us of Python per record"}


@dataclass(frozen=True)
class Costs:
    """What the parts of a micro-batch cost, in milliseconds.

    Attributes:
        driver: Steps of the driver, one after another, without the logs.
        driver_task: The same, for each active task.
        logs: Offset log and commit log in a local session.
        executor_logs: The same with executors.
        job: A job without tasks: scheduling, and what cannot run concurrently.
        spark_task: Scheduling of one Spark task by the driver.
        task_core: Processor time of an active task.
        spark_task_core: Processor time of a Spark task after the shuffle.
        executor_core: Processor time of an executor.
    """

    driver: float
    driver_task: float
    logs: float
    executor_logs: float
    job: float
    spark_task: float
    task_core: float
    spark_task_core: float
    executor_core: float


@dataclass(frozen=True)
class MicroBatch:
    """The parts of a micro-batch that run one after another, in milliseconds."""

    driver: float
    scheduling: float
    tasks: float
    records: float

    @property
    def ms(self) -> float:
        """Return the duration."""
        return self.driver + self.scheduling + self.tasks + self.records


def fitted(scaling: Mapping[str, Sequence[Mapping[str, Any]]]) -> Costs:
    """Return the costs that explain measured micro-batches.

    Args:
        scaling: The file that ``bench.scaling`` writes.
    """
    tasks, spark_tasks, executors = (scaling[axis] for axis in ("partitions", "spark-tasks", "executors"))
    driver, driver_task = _fit(tasks, "active", _DRIVER_PHASES)
    job, _ = _fit(tasks, "active", ("job",))
    _, task_core = _fit(tasks, "active", ("JVM", "Python"))
    _, spark_task_core = _fit(spark_tasks, "spark_tasks", ("JVM", "Python"))
    _, spark_task = _fit(spark_tasks, "spark_tasks", ("job",))
    _, executor_core = _fit(executors[1:], "executors", ("JVM", "Python"))
    return Costs(
        driver=driver,
        driver_task=driver_task,
        logs=_fit(tasks, "active", _LOG_PHASES)[0],
        executor_logs=median(_ms(case, _LOG_PHASES) for case in executors),
        job=job,
        # Two cores share the processor time; the rest of the job's growth is the driver's.
        spark_task=max(spark_task - spark_task_core / 2, 0.0),
        task_core=task_core - driver_task,
        spark_task_core=spark_task_core,
        # Each executor of that axis has a Spark task after the shuffle of its own.
        executor_core=max(executor_core - spark_task_core, 0.0),
    )


def record_core_us(costs: Costs, runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the processor time of a record in microseconds, without what each micro-batch costs.

    Args:
        costs: Costs of a micro-batch.
        runs: Runs with key ranges from the file that ``bench.ranges`` writes.
    """
    tasks = costs.task_core * ranges_for(_MEASURED_WORKERS) + costs.spark_task_core * _MEASURED_WORKERS
    batch = costs.driver + costs.job + tasks
    each: list[float] = [
        (1e6 * run["processor_s_without_start"] - 1e3 * batch * len(run["batches"])) / run["records"]
        for run in runs
    ]
    return median(each)


def micro_batch(costs: Costs, record_us: float, cores: int) -> MicroBatch:
    """Return what a micro-batch of one partition takes, with a worker per core.

    Args:
        costs: Costs of a micro-batch.
        record_us: Processor time of a record, microseconds.
        cores: Cores, up to eight of them in one local session, more of them in executors with eight cores each.
    """
    ranges = ranges_for(max(cores, 2))  # also one core has key ranges, as the others are compared with it
    local = cores <= CORES_PER_EXECUTOR
    executor = 0.0 if local else costs.executor_core / CORES_PER_EXECUTOR
    alike = {str(TaskId(0, number)): 1.0 for number in range(ranges)}
    most = busiest(alike, [cores])[cores]  # key ranges of the busiest worker
    return MicroBatch(
        driver=costs.driver + costs.driver_task * ranges + (costs.logs if local else costs.executor_logs),
        scheduling=costs.job + costs.spark_task * cores,
        tasks=costs.task_core * most + costs.spark_task_core + executor,
        records=record_us * RECORDS / 1000 * most / ranges,
    )


def _fit(cases: Sequence[Mapping[str, Any]], size: str, phases: Sequence[str]) -> tuple[float, float]:
    """Return the fixed part of phases, and their growth with a size, in ms."""
    found = linear_regression([case[size] for case in cases], [_ms(case, phases) for case in cases])
    return found.intercept, found.slope


def _ms(case: Mapping[str, Any], phases: Sequence[str]) -> float:
    times: Mapping[str, Sequence[float]] = case["ms"]
    return sum(median(times[phase]) for phase in phases)


def block(scaling: Mapping[str, Any], ranges: Mapping[str, Any]) -> str:
    """Return the model's table and picture as Markdown.

    Args:
        scaling: The file that ``bench.scaling`` writes.
        ranges: The file that ``bench.ranges`` writes.
    """
    return "\n".join(_lines(scaling, ranges)) + "\n"


def _lines(scaling: Mapping[str, Any], ranges: Mapping[str, Any]) -> Iterator[str]:
    costs = fitted(scaling)
    record_us = {job: record_core_us(costs, ranges[job]["runs"]["with"]) for job in _JOBS}
    modelled = {job: [micro_batch(costs, record_us[job], cores) for cores in CORES] for job in _JOBS}
    yield from _costs(costs, record_us)
    for job, batches in modelled.items():
        yield f"A micro-batch of {RECORDS:,} records, {_JOBS[job]}, in milliseconds:"
        yield ""
        yield "| cores | driver | scheduling | tasks | records | all | records/s | speed-up |"
        yield "|---|---|---|---|---|---|---|---|"
        for cores, batch in zip(CORES, batches, strict=True):
            parts = (batch.driver, batch.scheduling, batch.tasks, batch.records, batch.ms)
            cells = " | ".join(f"{part:,.0f}" for part in parts)
            yield f"| {cores} | {cells} | {1000 * RECORDS / batch.ms:,.0f} | {batches[0].ms / batch.ms:.1f} |"
        yield ""
    yield from _picture(modelled)


def _costs(costs: Costs, record_us: Mapping[str, float]) -> Iterator[str]:
    yield "| cost of a micro-batch, fitted | ms |"
    yield "|---|---|"
    yield f"| driver, one step after another | {costs.driver:.0f} |"
    yield f"| driver, each active task | {costs.driver_task:.2f} |"
    yield f"| offset log and commit log; with executors | {costs.logs:.0f}; {costs.executor_logs:.0f} |"
    yield f"| start and end of the job | {costs.job:.0f} |"
    yield f"| scheduling of a Spark task | {costs.spark_task:.1f} |"
    yield f"| processor time of an active task (key range) | {costs.task_core:.1f} |"
    yield f"| processor time of a Spark task after the shuffle | {costs.spark_task_core:.0f} |"
    yield f"| processor time of an executor | {costs.executor_core:.0f} |"
    for job, us in record_us.items():
        yield f"| processor time of 1,000 records, {_JOBS[job]} | {us:.1f} |"
    yield ""


def _picture(modelled: Mapping[str, Sequence[MicroBatch]]) -> Iterator[str]:
    yield "```mermaid"
    yield '%%{init: {"themeVariables": {"xyChart": {"plotColorPalette": "#c44e52, #4c72b0"}}}}%%'
    yield "xychart-beta"
    yield '    title "Modelled speed-up of one partition"'
    yield f'    x-axis "cores" {json.dumps([str(cores) for cores in CORES])}'
    yield '    y-axis "speed-up"'
    for batches in modelled.values():
        yield f"    line {json.dumps([round(batches[0].ms / batch.ms, 1) for batch in batches])}"
    yield "```"


def main() -> None:
    """Write the page."""
    model = block(json.loads(SCALING.read_text()), json.loads(RANGES.read_text()))
    PAGE.write_text(replaced(PAGE.read_text(), MARK, model))


if __name__ == "__main__":
    main()
