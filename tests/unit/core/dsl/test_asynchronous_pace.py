"""Failing records and hot keys delay other records only within bounds, measured by the clock of the test driver."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import millstream as ms
from millstream.testing import TopologyTestDriver as Driver

RECORDS = 600
CALL_MS = 10
IN_FLIGHT = 10


class Service:
    """A service whose calls take 10 ms; it records the start and end of each call by key."""

    def __init__(self, answer_for: Callable[[str], Any] = lambda value: None) -> None:
        self.answer_for = answer_for
        self.spans: dict[str, list[tuple[int, int]]] = defaultdict(list)

    async def call(self, key: str, value: str) -> str:
        loop = asyncio.get_running_loop()
        begun = round(loop.time() * 1000)
        await asyncio.sleep(CALL_MS / 1000)
        self.spans[key].append((begun, round(loop.time() * 1000)))
        answer = self.answer_for(value)
        return value if answer is None else answer  # type: ignore[no-any-return]


def run(rows: list[tuple[str, str]], service: Service, expected_count: int, **options: Any) -> dict[str, int]:
    """Pipe records until the expected number of results was sent; return the time in ms at which each value was sent."""
    builder = ms.StreamsBuilder()
    retry = ms.Retry(initial=20, cap=100)
    called = builder.stream("in").map_values_async(
        service.call, with_key=True, max_in_flight=IN_FLIGHT, retry=retry, **options
    )
    called.to("out")
    sent: dict[str, int] = {}
    with Driver(builder.build()) as driver:
        for key, value in rows:
            driver.pipe("in", key, value)
        for now in range(0, 20_000, CALL_MS):
            sent |= {record.value: now for record in driver.read("out")}
            if len(sent) >= expected_count:
                break
            driver.advance_wall_clock(CALL_MS)
    assert len(sent) == expected_count
    return sent


@pytest.mark.parametrize("order", ["key", "completion"])
def test_endless_retries_cost_other_records_only_the_time_of_the_retried_calls(order: Any) -> None:
    rows = [(f"k{number}", f"{'bad' if number % 20 == 0 else 'good'} {number}") for number in range(RECORDS)]
    good = RECORDS - RECORDS // 20
    clean_ms = max(run(rows, Service(), RECORDS, order=order).values())
    poisoned = Service(lambda value: ms.retry() if value.startswith("bad") else None)
    poisoned_ms = max(run(rows, poisoned, good, order=order).values())
    assert clean_ms == pytest.approx(RECORDS * CALL_MS / IN_FLIGHT, rel=0.05)
    tries = sum(len(spans) for spans in poisoned.spans.values()) - good
    assert poisoned_ms <= (good + tries) * CALL_MS / IN_FLIGHT + 5 * CALL_MS


def test_a_hot_key_slows_cold_keys_down_by_at_most_a_factor_of_two() -> None:
    rng = random.Random(1)
    cold = [(f"k{number}", f"c{number}") for number in range(RECORDS // 2)]
    hot = [("hot", f"h{number}") for number in range(RECORDS // 2)]
    mixed = [*cold, *hot]
    rng.shuffle(mixed)
    alone = sorted(run(cold, Service(), len(cold)).values())
    service = Service()
    beside = run(mixed, service, len(mixed))
    times = sorted(beside[value] for _, value in cold)
    assert times[len(times) // 2] <= 2 * alone[len(alone) // 2]
    spans = service.spans["hot"]
    assert spans == sorted(spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_zipf_keys_with_failures_keep_their_order_and_complete_once() -> None:
    rng = random.Random(2)
    weights = [1 / rank**1.1 for rank in range(1, 51)]
    keys = rng.choices([f"k{rank}" for rank in range(50)], weights, k=RECORDS)
    rows = [(key, f"{key}:{number}") for number, key in enumerate(keys)]
    failures = {value: 2 for _, value in rows if rng.random() < 0.05}

    def fails_twice(value: str) -> Any:
        failures[value] = failures.get(value, 0) - 1
        return ms.retry(in_=5) if failures[value] >= 0 else None

    sent = list(run(rows, Service(fails_twice), RECORDS))
    for key in set(keys):
        of_key = [value for value in sent if value.startswith(f"{key}:")]
        assert of_key == [value for row_key, value in rows if row_key == key]
