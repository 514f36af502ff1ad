"""InFlightStore writes records in blocks, and reads them like a dict."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.engine.asynchronous import in_flight_record
from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord, InFlightStore

from .engines import Visits


class Store:
    """A store that counts the records written into even keys."""

    def __init__(self) -> None:
        self.entries: dict[int, Any] = {}
        self.put_rows = 0

    def all(self) -> list[tuple[int, Any]]:
        return sorted(self.entries.items())

    def put(self, key: int, entry: Any) -> None:
        if entry is None:
            del self.entries[key]
            return
        self.entries[key] = entry
        self.put_rows += 0 if key % 2 else len(entry)


def record(number: int, value: Any) -> InFlightRecord:
    return InFlightRecord(number, None, "k", value, 0, headers=(), request=None, came_ms=0)


def test_in_flight_records_are_read_as_written_and_few_are_rewritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_flight_record, "_BLOCK", 4)
    visits = Visits()

    @settings(max_examples=300)
    @given(st.integers(0, 2**32))
    def runs(seed: int) -> None:
        dice, store = random.Random(seed), Store()
        records: dict[int, InFlightRecord] = {}
        number = written = 0
        rows = InFlightStore(store)
        for _ in range(12):
            changed: set[int] = set()
            for _ in range(dice.randrange(8)):
                records[number] = record(number, dice.random())
                changed.add(number)
                number += 1
            for chosen in dice.sample(sorted(records), dice.randrange(len(records) + 1)):
                changed.add(chosen)
                if dice.random() < 0.7:
                    del records[chosen]
                else:
                    records[chosen].value = dice.random()
            written += len(changed & records.keys())
            rows.write(sorted(changed), records)
            visits["beside"] += any(key % 2 for key in store.entries)
            if dice.random() < 0.5:
                rows = InFlightStore(store)
                found = rows.read()
                assert [(row.number, row.value) for row in found] == [
                    (chosen, records[chosen].value) for chosen in sorted(records)
                ]
        assert store.put_rows <= 2 * written + 4
        visits["moved"] += store.put_rows > written
        rows.write(sorted(records), {})
        assert store.entries == {}

    runs()
    visits.demand(beside=50, moved=50)


def test_large_values_are_stored_in_small_blocks() -> None:
    store = Store()
    records = {number: record(number, "v" * 50_000) for number in range(10)}
    InFlightStore(store).write(records, records)
    assert [len(entry) for _, entry in store.all()] == [3, 3, 3, 1]
