"""Calls in the test driver behave as on Spark: they work on copies, and they cannot end the process of the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError
from millstream.testing import TopologyTestDriver as Driver

JSON = ms.serdes.json


def topology(function: Callable[..., Any], **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in", value=JSON)
    stream.map_values_async(function, name="call", **options).to("out", value=JSON)
    stream.to("copy", value=JSON)
    return builder.build()


def test_a_function_that_changes_its_argument_changes_a_copy() -> None:
    async def mark(value: dict[str, Any]) -> dict[str, Any]:
        value["tries"] = value.get("tries", 0) + 1
        if "again" not in value:
            raise OSError("down")
        return value

    retry = ms.Retry(max_attempts=3, initial=10, jitter=0)
    with Driver(topology(mark, retry=retry, on_failure=ms.dead_letter("dead"))) as driver:
        driver.pipe("in", "k", {"a": 1})
        driver.pipe("in", "l", {"again": True})
        driver.advance_wall_clock(1_000)
        assert [record.value for record in driver.read("copy")] == [{"a": 1}, {"again": True}]
        assert [record.value for record in driver.read("out")] == [{"again": True, "tries": 1}]
        assert [letter.value for letter in driver.read("dead")] == [b'{"a":1}']


def test_a_result_is_a_copy() -> None:
    originals: list[dict[str, int]] = []

    def remember(value: Any) -> dict[str, int]:
        originals.append({"a": 1})
        return originals[-1]

    builder = ms.StreamsBuilder()
    results: list[Any] = []
    builder.stream("in").map_values_async(remember).foreach(lambda key, value: results.append(value))
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
    assert results == originals
    assert results[0] is not originals[0]


def test_a_result_that_cannot_be_pickled_is_a_failure() -> None:
    with (
        Driver(topology(lambda value: (each for each in [value]))) as driver,
        pytest.raises(ProcessingError, match="cannot be pickled to send it to the task"),
    ):
        driver.pipe("in", "k", "v")


def test_a_result_of_a_class_inside_a_function_can_be_pickled() -> None:
    class Price:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    builder = ms.StreamsBuilder()
    prices = builder.stream("in").map_values_async(lambda value: Price(3))
    prices.map_values(lambda price: price.cents if type(price) is Price else None).to("out", value=JSON)
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        assert [record.value for record in driver.read("out")] == [3]


@pytest.mark.parametrize("coroutine", [True, False])
def test_a_call_that_ends_its_process_counts_as_failed(coroutine: bool) -> None:
    def end(value: Any) -> Any:
        raise SystemExit(3)

    async def end_later(value: Any) -> Any:
        raise SystemExit(3)

    retry = ms.Retry(initial=10, jitter=0, max_attempts=2, on=(ProcessingError,))
    options: dict[str, Any] = {"retry": retry, "on_failure": ms.dead_letter("dead")}
    with Driver(topology(end_later if coroutine else end, **options)) as driver:
        driver.pipe("in", "k", "v")
        driver.advance_wall_clock(100)
        (letter,) = driver.read("dead")
        headers = dict(letter.headers)
    assert headers["millstream.error.error"] == b"ProcessingError: the call ended with SystemExit: 3"
    assert headers["millstream.error.attempts"] == b"2"


@pytest.mark.parametrize("coroutine", [True, False])
def test_a_keyboard_interrupt_ends_the_test(coroutine: bool) -> None:
    def interrupted(value: Any) -> Any:
        raise KeyboardInterrupt

    async def interrupted_later(value: Any) -> Any:
        raise KeyboardInterrupt

    with (
        Driver(topology(interrupted_later if coroutine else interrupted)) as driver,
        pytest.raises(KeyboardInterrupt),
    ):
        driver.pipe("in", "k", "v")
