"""Endpoints: their names, the failures that count for a circuit breaker, and how long a breaker is kept."""

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


def new_dispatcher(failures: int = 1) -> Dispatcher:
    breaker = CircuitBreaker(failures=failures, reset_after=1_000)
    return Dispatcher(Calls(order="completion", max_in_flight=200, circuit_breaker=breaker))


def offer_and_start(dispatcher: Dispatcher, now_ms: int, *endpoints: str) -> list[int]:
    """Offer a call for each endpoint, and return the numbers of the starts."""
    for number, endpoint in enumerate(endpoints):
        ticket = Ticket("call", number, now_ms, "a")
        dispatcher.offer(Call(ticket, print, (), endpoint=endpoint), now_ms)
    return [start.number for start in dispatcher.start(now_ms)]


@pytest.mark.parametrize("name", [["a", "list"], None, 5, b"bytes"])
def test_an_endpoint_name_that_is_not_a_text_fails_its_record(name: Any) -> None:
    builder = ms.StreamsBuilder()
    calls: dict[str, Any] = {"circuit_breaker": ms.CircuitBreaker(), "endpoint": lambda key, value: name}
    builder.stream("in").map_values_async(str.upper, name="ask", **calls)
    with Driver(builder.build()) as driver, pytest.raises(ProcessingError) as raised:
        driver.pipe("in", "k", "v")
    message = str(raised.value)
    assert "the call of ask in task 0_0 at topic 'in', partition 0, offset 0" in message
    assert f"as a str, not {name!r}" in message


def test_an_endpoint_name_that_is_not_a_text_is_handled_by_on_failure() -> None:
    builder = ms.StreamsBuilder()
    calls: dict[str, Any] = {"circuit_breaker": ms.CircuitBreaker(), "endpoint": lambda key, value: [key]}
    builder.stream("in").map_values_async(str.upper, on_failure=ms.dead_letter("dead"), **calls)
    with Driver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        driver.advance_wall_clock(1)
        assert [letter.value for letter in driver.read("dead")] == [b"v"]


def test_failures_of_calls_that_began_before_the_breaker_opened_do_not_postpone_the_trial() -> None:
    dispatcher = new_dispatcher()
    first, second, third = offer_and_start(dispatcher, 0, "a", "a", "a")
    dispatcher.end(first, FAILED, 10)
    assert offer_and_start(dispatcher, 20, "a") == []
    dispatcher.end(second, FAILED, 900)
    assert dispatcher.wake_at_ms(900) == 1_010
    (trial,) = offer_and_start(dispatcher, 1_010)
    dispatcher.end(third, FAILED, 1_020)  # not the call of the trial, which still runs
    assert offer_and_start(dispatcher, 1_030, "a") == []
    dispatcher.end(trial, FAILED, 1_040)
    assert dispatcher.wake_at_ms(1_040) == 2_040


def test_a_breaker_is_kept_only_while_it_has_running_calls_or_counted_failures() -> None:
    dispatcher = new_dispatcher(failures=2)
    breakers = dispatcher._endpoints._breakers
    numbers = offer_and_start(dispatcher, 0, *(f"e{number}" for number in range(100)), "e0")
    assert len(breakers) == 100
    for number in numbers[:-1]:
        dispatcher.end(number, ["done"], 1)
    assert list(breakers) == ["e0"]  # another call of this endpoint is running
    dispatcher.end(numbers[-1], FAILED, 1)
    assert list(breakers) == ["e0"]  # the failure was counted
    (again,) = offer_and_start(dispatcher, 2, "e0")
    dispatcher.end(again, ["done"], 3)
    assert not breakers
