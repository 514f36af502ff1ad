"""Proof 9: records whose calls always fail do not slow down other records.

Successful calls take 20 ms, and ten of them run at once, so 500 a second are possible. Calls for poison records fail immediately,
because an attempt that takes time occupies one of the ``max_in_flight`` calls.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import millstream as ms
from integration.helpers import Apps, eventually

from .journal import END, FAILED, Journal, lines_of, read
from .results import write_result
from .runs import calls_of, now_ms, ratio, times_ms
from .sizes import sized

pytestmark = [
    pytest.mark.alone,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(sized(600, 1_500)),
]

CALL_S = 0.020
IN_FLIGHT = 10
CLEAN_S, POISONED_S = sized((5, 8), (100, 600))
SETTLING_S = sized(2, 10)
"""The time at the beginning of each run that is not measured."""
MOST_PER_SECOND = 500
WARM_UP = range(500)
CLEAN = range(WARM_UP.stop, WARM_UP.stop + CLEAN_S * MOST_PER_SECOND)
POISONED = range(CLEAN.stop, CLEAN.stop + POISONED_S * MOST_PER_SECOND)
RETRY = ms.Retry(initial=100, factor=2, cap=sized(2_000, 60_000))


def is_poison(number: int) -> bool:
    return number in POISONED and number % 20 == 0


def per_second(path: Path, numbers: range, begin_ms: float, seconds: int) -> float:
    """Return how many calls of some records succeeded per second, from a given time on."""
    ended = lines_of(read(path), END)
    times = times_ms(ended[(ended["number"] >= numbers.start) & (ended["number"] < numbers.stop)])
    since = begin_ms + SETTLING_S * 1000
    return float(((times >= since) & (times < begin_ms + seconds * 1000)).sum()) / (seconds - SETTLING_S)


def test_poison_records_do_not_slow_down_other_records(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    path = tmp_path / "journal"
    journal = Journal(path)

    async def call(value: str) -> str:
        number = int(value)
        if is_poison(number):
            journal.failed(number)
            raise ValueError("poison")
        await asyncio.sleep(CALL_S)
        journal.end(number)
        return value

    def send(numbers: range) -> None:
        apps.kafka.produce(source, [(f"k{number}", str(number)) for number in numbers])

    def ended(numbers: range) -> int:
        found = lines_of(read(path), END)["number"]
        return int(((found >= numbers.start) & (found < numbers.stop)).sum())

    builder = ms.StreamsBuilder()
    calls = builder.stream(source).map_values_async(call, max_in_flight=IN_FLIGHT, retry=RETRY)
    calls.to(sink)
    with apps.start(builder.build()) as running:
        send(WARM_UP)
        eventually(lambda: ended(WARM_UP) == len(WARM_UP), "the first results")
        began: dict[range, float] = {}
        for numbers, seconds in ((CLEAN, CLEAN_S), (POISONED, POISONED_S)):
            send(numbers)
            eventually(lambda numbers=numbers: ended(numbers) > 0, "a result")
            began[numbers] = begin = now_ms()
            eventually(
                lambda until=begin + seconds * 1000: now_ms() > until,
                "the end of a run",
                within_s=seconds + 10,
            )
            if numbers is CLEAN:
                eventually(lambda: ended(CLEAN) == len(CLEAN), "the rest", within_s=2 * CLEAN_S + 30)
        # The status is that of the last micro-batch, which may have begun while no poison record waited.
        eventually(lambda: calls_of(running, "waiting") > 0, "a retry that waits")
    clean = per_second(path, CLEAN, began[CLEAN], CLEAN_S)
    poisoned = per_second(path, POISONED, began[POISONED], POISONED_S)
    attempts = lines_of(read(path), FAILED)["number"]
    write_result(
        "9-poison",
        seconds=POISONED_S,
        poison=len(set(attempts.tolist())),
        attempts_for_poison=len(attempts),
        others_against_clean=ratio(poisoned, clean),
    )
    assert poisoned >= sized(0.25, 0.9) * clean
