"""The initial number of workers, and the work of the busiest one."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.topology.analysis.ranges import Parallelism, divided_plan
from millstream.core.topology.layout import lay_out
from millstream.edge.planning.worker_counts import busiest, first_workers


@pytest.mark.parametrize(
    ("partitions", "before", "cores", "workers"),
    [
        (1, None, 8, 1),
        (3, None, 8, 2),
        (32, None, 8, 8),
        (1, 8, 8, 8),
        (1, 6, 8, 4),
        (1, 8, 2, 2),
        (1, 64, 64, 16),
    ],
)
def test_the_initial_number_of_workers_follows_the_checkpoint_or_the_undivided_tasks(
    partitions: int, before: int | None, cores: int, workers: int
) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("words").group_by_key().count()
    plan = divided_plan(builder.build().plan("app"), "auto")
    layout = lay_out(plan, {"words": partitions})
    assert first_workers(plan, layout, before, cores) == workers


@pytest.mark.parametrize("parallelism", ["auto", {"words": "auto", "numbers": 32}])
def test_automatic_parallelism_divides_a_partition_into_sixteen_key_ranges(parallelism: Parallelism) -> None:
    builder = ms.StreamsBuilder()
    for topic in ("words", "numbers"):
        builder.stream(topic).group_by_key().count()
    plan = divided_plan(builder.build().plan("app"), parallelism)
    assert [sub.ranges for sub in plan.subtopologies] == [16, 16 if parallelism == "auto" else 64]


def test_a_heavy_task_limits_the_benefit_of_more_workers() -> None:
    seconds = {f"0_{number}": 8.0 if number == 3 else 1.0 for number in range(16)}
    assert busiest(seconds, [1, 2, 4, 8, 16]) == {1: 23.0, 2: 15.0, 4: 11.0, 8: 9.0, 16: 8.0}
    assert busiest({}, [1, 2]) == {1: 0.0, 2: 0.0}
