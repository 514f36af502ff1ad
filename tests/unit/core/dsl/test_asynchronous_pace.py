"""What slow, failing and hot records cost the others, in the time of the test driver."""

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
    """A service that takes 10 ms for a call, and notes when it was called for what."""

    def __init__(self, bad: Callable[[str], Any] = lambda value: None) -> None:
        self.bad = bad
        self.spans: dict[str, list[tuple[int, int]]] = defaultdict(list)

    async def call(self, key: str, value: str) -> str:
        loop = asyncio.get_running_loop()
        begun = round(loop.time() * 1000)
        await asyncio.sleep(CALL_MS / 1000)
        self.spans[key].append((begun, round(loop.time() * 1000)))
        answer = self.bad(value)
        return value if answer is None else answer  # type: ignore[no-any-return]


def run(rows: list[tuple[str, str]], service: Service, wanted: int, **options: Any) -> dict[str, int]:
    """Pipe records; return per value the time in ms at which it was sent, until that many were sent."""
    builder = ms.StreamsBuilder()
    retry = ms.Retry(initial=20, cap=100)
    called = builder.stream("in").map_values_async(
        service.call, with_key=True, max_in_flight=IN_FLIGHT, retry=retry, **options
    )
    called.to("out")
    came: dict[str, int] = {}
    with Driver(builder.build()) as driver:
        for key, value in rows:
            driver.pipe("in", key, value)
        for now in range(0, 20_000, CALL_MS):
            came |= {record.value: now for record in driver.read("out")}
            if len(came) >= wanted:
                break
            driver.advance_wall_clock(CALL_MS)
    assert len(came) == wanted
    return came


@pytest.mark.parametrize("order", ["key", "completion"])
def test_poison_that_is_tried_for_ever_slows_the_others_by_its_own_calls_only(order: Any) -> None:
    rows = [(f"k{number}", f"{'bad' if number % 20 == 0 else 'good'} {number}") for number in range(RECORDS)]
    good = RECORDS - RECORDS // 20
    clean = max(run(rows, Service(), RECORDS, order=order).values())
    poisoned = Service(lambda value: ms.retry() if value.startswith("bad") else None)
    took = max(run(rows, poisoned, good, order=order).values())
    assert clean == pytest.approx(RECORDS * CALL_MS / IN_FLIGHT, rel=0.05)
    tries = sum(len(spans) for spans in poisoned.spans.values()) - good
    assert took <= (good + tries) * CALL_MS / IN_FLIGHT + 5 * CALL_MS


def test_cold_keys_are_as_fast_beside_a_hot_one() -> None:
    dice = random.Random(1)
    cold = [(f"k{number}", f"c{number}") for number in range(RECORDS // 2)]
    hot = [("hot", f"h{number}") for number in range(RECORDS // 2)]
    mixed = [*cold, *hot]
    dice.shuffle(mixed)
    alone = sorted(run(cold, Service(), len(cold)).values())
    service = Service()
    beside = run(mixed, service, len(mixed))
    times = sorted(beside[value] for _, value in cold)
    assert times[len(times) // 2] <= 2 * alone[len(alone) // 2]
    spans = service.spans["hot"]
    assert spans == sorted(spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_zipf_keys_with_failures_keep_their_order_and_complete_once() -> None:
    dice = random.Random(2)
    weights = [1 / rank**1.1 for rank in range(1, 51)]
    keys = dice.choices([f"k{rank}" for rank in range(50)], weights, k=RECORDS)
    rows = [(key, f"{key}:{number}") for number, key in enumerate(keys)]
    failures = {value: 2 for _, value in rows if dice.random() < 0.05}

    def fails_twice(value: str) -> Any:
        failures[value] = failures.get(value, 0) - 1
        return ms.retry(in_=5) if failures[value] >= 0 else None

    came = list(run(rows, Service(fails_twice), RECORDS))
    for key in set(keys):
        of_key = [value for value in came if value.startswith(f"{key}:")]
        assert of_key == [value for row_key, value in rows if row_key == key]
