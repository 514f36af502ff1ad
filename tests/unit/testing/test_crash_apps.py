"""The applications of the crash harness match their oracles on the test driver, where nothing is killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from millstream.core.model import serdes
from millstream.testing import TopologyTestDriver
from millstream.testing.crash import APPS, App, Topics, check_journals
from millstream.testing.crash.journal import check_contents
from millstream.testing.kafka import ConsumedRecord, Payload

RECORDS = 1_500
TOPICS = Topics("input", "output", "ask", "contents", "history")


def as_bytes(payload: Payload) -> bytes | None:
    return payload.encode() if isinstance(payload, str) else payload


def workload(app: App, count: int, seed: int = 5) -> list[ConsumedRecord]:
    """Return the records of all inputs; those of two inputs in the order in which a task takes them."""
    rows_by_topic: dict[str, Any] = {"input": app.workload(count, seed)}
    if app.history is not None:
        rows_by_topic["history"] = app.history(count, seed)
    records = [
        ConsumedRecord(
            topic, 0, offset, timestamp, as_bytes(key), as_bytes(value), (("number", b"%d" % offset),)
        )
        for topic, rows in rows_by_topic.items()
        for offset, (key, value, timestamp) in enumerate(rows)
    ]
    return records if len(rows_by_topic) == 1 else sorted(records, key=lambda r: (r.timestamp, r.topic))


@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_results_and_stores_match_the_oracle(app: App) -> None:
    records = workload(app, RECORDS)
    expected = app.oracle(records)
    # New processors would read the unfinished records again for each record: none finishes before the clock advances.
    topology, parallelism = app.topology(TOPICS), app.settings.get("parallelism", 1)
    can_be_asked = "ask" in topology.plan().external_topics
    assert bool(expected.stores) is can_be_asked
    with TopologyTestDriver(topology, keep_processors=True, parallelism=parallelism) as driver:
        for record in records:
            driver.pipe(record.topic, record.key, record.value, record.timestamp, record.headers)
        driver.advance_wall_clock(3_600_000)  # until all calls have ended
        journals: dict[Any, list[Any]] = defaultdict(list)
        for result in driver.read("output"):
            journals[result.key].append((result.value, result.timestamp, result.headers))
        assert expected.origins is not None
        expected_journals = {
            key: [
                (value, origin.timestamp, origin.headers)
                for value, origin in zip(values, expected.origins[key], strict=True)
            ]
            for key, values in expected.journals.items()
        }
        assert not check_journals(expected_journals, journals).breaks("exactly_once")
        assert sum(map(len, journals.values())) >= RECORDS
        if not can_be_asked:
            return
        driver.pipe("ask", None, "contents", 1)
        contents = {result.key: result.value for result in driver.read("contents")}
    assert check_contents(expected, contents) == (0, ())


@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_a_seed_always_produces_the_same_workload(app: App) -> None:
    assert app.workload(50, 1) == app.workload(50, 1) != app.workload(50, 2)


def test_the_oracle_of_two_stores_shows_each_booking_with_its_balance() -> None:
    amounts = [("a", 5), ("b", 1), ("a", -7)]
    records = [
        ConsumedRecord("input", 0, offset, 1, key.encode(), serdes.int64.serialize(amount))
        for offset, (key, amount) in enumerate(amounts)
    ]
    expected = APPS["two-stores"].oracle(records)
    assert expected.journals == {"a": [[1, 5], [2, -2]], "b": [[1, 1]]}
    assert expected.stores == {"balances": {"a": -2, "b": 1}, "bookings": {"a": 2, "b": 1}}


def test_the_windowed_workload_has_late_records_and_expired_windows() -> None:
    records = workload(APPS["windowed"], 3_000)
    assert [record.timestamp for record in records] != sorted(record.timestamp for record in records)
    expected = APPS["windowed"].oracle(records)
    assert max(count for count, _ in expected.stores["windows"].values()) > 5
    assert len(expected.stores["windows"]) < len(expected.journals) / 2


@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_a_repeated_record_does_not_hide_a_lost_one(app: App) -> None:
    """One record is lost, and an earlier one is processed twice: the journals show it, counts alone would not."""
    records = workload(app, 300)
    (key, _), *_ = Counter(record.key for record in records if record.topic == "input").most_common()
    same = [number for number, record in enumerate(records) if record.topic == "input" and record.key == key]
    before, lost = same[-2:]
    swapped = list(records)
    swapped[lost] = records[before]
    right, wrong = app.oracle(records), app.oracle(swapped)
    assert check_journals(right.journals, wrong.journals).breaks("exactly_once")
