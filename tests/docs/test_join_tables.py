"""The joins of the test driver have the results of the tables in docs/concepts/joins.md, record by record."""

from __future__ import annotations

import pytest

import millstream as ms
from golden.micro_batches import MicroBatches

from .join_tables import KEY, RESULTS, Step, steps, topology


def formatted(records: list[ms.Record]) -> dict[str, list[str]]:
    """Format the results of one record as the tables do."""
    by_join: dict[str, list[str]] = {}
    for record in records:
        by_join.setdefault(record.key, []).append(f"{record.value} @ {record.timestamp}")
    return by_join


def expected(step: Step) -> dict[str, list[str]]:
    return {join: results for join, results in step.results.items() if results}


def test_each_record_has_the_results_of_its_row() -> None:
    with ms.testing.TopologyTestDriver(topology()) as driver:
        for step in steps():
            driver.pipe(step.topic, KEY, step.value, step.timestamp)
            assert formatted(driver.read(RESULTS)) == expected(step), step[:3]


def test_results_are_the_same_with_a_new_task_for_each_record() -> None:
    runner = MicroBatches(topology(), "app", chunk=1, budget=None)
    for step in steps():
        value = None if step.value is None else step.value.encode()
        runner.process(step.topic, [(KEY.encode(), value, step.timestamp, ())])
        assert formatted(runner.sent.pop(RESULTS, [])) == expected(step), step[:3]


def test_the_tables_cover_all_joins_and_out_of_order_records() -> None:
    rows = steps()
    assert len(rows[0].results) == 10
    times = [step.timestamp for step in rows]
    assert sum(time < max(times[: i + 1]) for i, time in enumerate(times)) > 8


@pytest.mark.parametrize("join", sorted(steps()[0].results))
def test_every_join_has_results(join: str) -> None:
    assert any(step.results[join] for step in steps())
