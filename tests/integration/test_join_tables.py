"""Joins on Spark have the results of the tables in docs/concepts/joins.md, with one micro-batch per record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from docs.join_tables import INPUTS, KEY, RESULTS, steps, topology
from millstream.testing.kafka import ConsumedRecord

from .helpers import Apps, eventually, lag, written

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture
def topics(apps: Apps) -> Iterator[None]:
    """The topics of that page, with one partition each."""
    for topic in (*INPUTS, RESULTS):
        apps.kafka.create_topic(topic, 1)
    yield
    apps.stop_all()
    for topic in (*INPUTS, RESULTS):
        apps.kafka.delete_topic(topic)


def results_by_join(records: list[ConsumedRecord]) -> dict[str, list[str]]:
    by_join: dict[str, list[str]] = {}
    for record in records:
        value = None if record.value is None else record.value.decode()
        by_join.setdefault((record.key or b"").decode(), []).append(f"{value} @ {record.timestamp}")
    return by_join


def test_each_record_has_the_join_results_of_its_table_row(apps: Apps, topics: None) -> None:
    kafka, ends = apps.kafka, [0]
    apps.start(topology())
    for step in steps():
        kafka.produce(step.topic, [(KEY, step.value, step.timestamp)], partition=0)
        eventually(lambda topic=step.topic: lag(kafka, apps.id, topic) == 0, "the record to be processed")
        ends.append(written(kafka, RESULTS))
    records = kafka.consume(RESULTS)
    for step, start, end in zip(steps(), ends, ends[1:]):
        expected = {join: results for join, results in step.results.items() if results}
        assert results_by_join(records[start:end]) == expected, step[:3]
