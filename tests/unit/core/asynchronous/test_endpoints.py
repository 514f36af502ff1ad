"""Endpoints: which name a record has, which failures count for a circuit breaker, and how long a breaker is kept."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.asynchronous.call import Call, Raised, Ticket
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.model.calls import Calls, CircuitBreaker
from millstream.core.model.errors import ProcessingError
from millstream.testing import TopologyTestDriver as Driver

FAILED = [Raised(OSError("down"))]


def dispatcher(failures: int = 1) -> Dispatcher:
    breaker = CircuitBreaker(failures=failures, reset_after=1_000)
    return Dispatcher(Calls(order="completion", max_in_flight=200, circuit_breaker=breaker))


def started(made: Dispatcher, now_ms: int, *endpoints: str) -> list[int]:
    """Offer a call for each endpoint, and return the numbers of the starts."""
    for number, endpoint in enumerate(endpoints):
        ticket = Ticket("call", number, now_ms, "a")
        made.offer(Call(ticket, print, (), endpoint=endpoint), now_ms)
    return [start.number for start in made.start(now_ms)]


@pytest.mark.parametrize("name", [["a", "list"], None, 5, b"bytes"])
def test_a_name_that_is_no_text_is_a_failure_of_its_record(name: Any) -> None:
    builder = ms.StreamsBuilder()
    calls: dict[str, Any] = {"circuit_breaker": ms.CircuitBreaker(), "endpoint": lambda key, value: name}
    builder.stream("in").map_values_async(str.upper, name="ask", **calls)
    with Driver(builder.build()) as driver, pytest.raises(ProcessingError) as raised:
        driver.pipe("in", "k", "v")
    said = str(raised.value)
    assert "the call of ask in task 0_0 at topic 'in', partition 0, offset 0" in said
    assert f"as a str, not {name!r}" in said


def test_a_name_that_is_no_text_follows_on_failure() -> None:
    builder = ms.StreamsBuilder()
    calls: dict[str, Any] = {"circuit_breaker": ms.CircuitBreaker(), "endpoint": lambda key, value: [key]}
    builder.stream("in").map_values_async(str.upper, on_failure=ms.dead_letter("dead"), **calls)
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        driver.advance_wall_clock(1)
        assert [letter.value for letter in driver.read("dead")] == [b"v"]


def test_failures_of_calls_that_began_before_the_breaker_opened_do_not_postpone_the_trial() -> None:
    made = dispatcher()
    first, second, third = started(made, 0, "a", "a", "a")
    made.end(first, FAILED, 10)
    assert started(made, 20, "a") == []
    made.end(second, FAILED, 900)
    assert made.wake_at_ms(900) == 1_010
    (trial,) = started(made, 1_010)
    made.end(third, FAILED, 1_020)  # not the trial, which still runs
    assert started(made, 1_030, "a") == []
    made.end(trial, FAILED, 1_040)
    assert made.wake_at_ms(1_040) == 2_040


def test_a_breaker_is_kept_only_while_it_knows_something() -> None:
    made = dispatcher(failures=2)
    breakers = made._endpoints._breakers
    numbers = started(made, 0, *(f"e{number}" for number in range(100)), "e0")
    assert len(breakers) == 100
    for number in numbers[:-1]:
        made.end(number, ["done"], 1)
    assert list(breakers) == ["e0"]  # another of its calls is running
    made.end(numbers[-1], FAILED, 1)
    assert list(breakers) == ["e0"]  # its failure counts
    (again,) = started(made, 2, "e0")
    made.end(again, ["done"], 3)
    assert not breakers
