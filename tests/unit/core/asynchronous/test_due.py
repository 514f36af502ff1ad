"""Early calls, which are handed over before they are due, start when they are due and block only their own line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from millstream.core.asynchronous.async_worker import Queued
from millstream.core.asynchronous.call import Call, Ticket
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.model.calls import Calls


def dispatcher_of(*calls: Call, **options: Any) -> Dispatcher:
    dispatcher = Dispatcher(Calls(**options))
    for call in calls:
        dispatcher.offer(call, 0)
    return dispatcher


def call(number: int, line: str | None = None, due_ms: int = 0) -> Call:
    return Call(Ticket("call", number, 1, "a"), print, (number,), line, due_ms=due_ms)


def start_calls(dispatcher: Dispatcher, now_ms: int) -> list[int]:
    return [each.ticket.number for start in dispatcher.start(now_ms) for each in start.calls]


def run_calls(dispatcher: Dispatcher, now_ms: int) -> Iterable[int]:
    while starts := dispatcher.start(now_ms):
        for start in starts:
            yield from (each.ticket.number for each in start.calls)
            dispatcher.end(start.number, [None] * len(start.calls), now_ms)


@pytest.mark.parametrize("order", ["key", "partition", "completion"])
def test_a_call_starts_when_it_is_due(order: str) -> None:
    dispatcher = dispatcher_of(call(0, "a", due_ms=50), call(1, "b"), order=order)
    assert start_calls(dispatcher, 0) == [1]
    work = dispatcher.work(10)
    assert (dispatcher.wake_at_ms(0), work.early_ms, work.queued) == (50, 40, Queued(time=1))
    assert start_calls(dispatcher, 49) == []
    assert start_calls(dispatcher, 50) == [0]
    work = dispatcher.work(50)
    assert (work.early_ms, work.queued) == (None, Queued())


def test_later_calls_of_its_line_wait_for_an_early_call() -> None:
    dispatcher = dispatcher_of(call(0, "a", due_ms=50), call(1, "a"))
    assert start_calls(dispatcher, 49) == []
    assert list(run_calls(dispatcher, 50)) == [0, 1]


def test_of_two_early_calls_in_a_line_the_second_also_waits_until_it_is_due() -> None:
    for batch in (None, (2, 0)):
        dispatcher = dispatcher_of(call(0, "a", due_ms=50), call(1, "a", due_ms=60), batch=batch)
        assert list(run_calls(dispatcher, 50)) == [0]
        assert list(run_calls(dispatcher, 60)) == [1]


def test_an_early_call_does_not_count_as_in_flight_until_it_is_due() -> None:
    early = [call(number, "a", due_ms=50) for number in range(3)]
    dispatcher = dispatcher_of(
        *early, call(3, "a"), order="completion", max_in_flight=1, max_in_flight_per_key=1
    )
    assert list(run_calls(dispatcher, 0)) == [3]
    assert list(run_calls(dispatcher, 50)) == [0, 1, 2]


def test_calls_that_became_due_take_turns_with_new_calls() -> None:
    new = [call(number) for number in range(10, 15)]
    dispatcher = dispatcher_of(*new, *(call(number, due_ms=50) for number in range(3)), max_in_flight=1)
    assert list(run_calls(dispatcher, 50)) == [0, 10, 1, 11, 2, 12, 13, 14]


def test_an_early_call_that_is_forgotten_is_not_started_and_blocks_nothing() -> None:
    dispatcher = dispatcher_of(call(0, "a", due_ms=50), call(1, "a"), call(2, "b", due_ms=50))
    dispatcher.forget({call(0).ticket})
    assert list(run_calls(dispatcher, 1)) == [1]
    assert list(run_calls(dispatcher, 50)) == [2]
    assert dispatcher.idle
