"""Calls that are handed over before they are due: they start when they are due, and hold up only their own key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from millstream.core.asynchronous.async_worker import Queued
from millstream.core.asynchronous.call import Call, Ticket
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.model.calls import Calls


def dispatcher(*calls: Call, **options: Any) -> Dispatcher:
    made = Dispatcher(Calls(**options))
    for call in calls:
        made.offer(call, 0)
    return made


def call(number: int, line: str | None = None, due_ms: int = 0) -> Call:
    return Call(Ticket("call", number, 1, "a"), print, (number,), line, due_ms=due_ms)


def begun(made: Dispatcher, now_ms: int) -> list[int]:
    return [each.ticket.number for start in made.start(now_ms) for each in start.calls]


def finishing_each(made: Dispatcher, now_ms: int) -> Iterable[int]:
    while starts := made.start(now_ms):
        for start in starts:
            yield from (each.ticket.number for each in start.calls)
            made.end(start.number, [None] * len(start.calls), now_ms)


@pytest.mark.parametrize("order", ["key", "partition", "completion"])
def test_a_call_begins_when_it_is_due(order: str) -> None:
    made = dispatcher(call(0, "a", due_ms=50), call(1, "b"), order=order)
    assert begun(made, 0) == [1]
    work = made.work(10)
    assert (made.wake_at_ms(0), work.early_ms, work.queued) == (50, 40, Queued(time=1))
    assert begun(made, 49) == []
    assert begun(made, 50) == [0]
    work = made.work(50)
    assert (work.early_ms, work.queued) == (None, Queued())


def test_those_behind_it_in_its_line_wait_for_it() -> None:
    made = dispatcher(call(0, "a", due_ms=50), call(1, "a"))
    assert begun(made, 49) == []
    assert list(finishing_each(made, 50)) == [0, 1]


def test_of_two_in_a_line_the_second_is_not_early_either() -> None:
    for batch in (None, (2, 0)):
        made = dispatcher(call(0, "a", due_ms=50), call(1, "a", due_ms=60), batch=batch)
        assert list(finishing_each(made, 50)) == [0]
        assert list(finishing_each(made, 60)) == [1]


def test_it_takes_no_place_until_it_is_due() -> None:
    early = [call(number, "a", due_ms=50) for number in range(3)]
    made = dispatcher(*early, call(3, "a"), order="completion", max_in_flight=1, max_in_flight_per_key=1)
    assert list(finishing_each(made, 0)) == [3]
    assert list(finishing_each(made, 50)) == [0, 1, 2]


def test_those_that_are_due_take_turns_with_new_ones() -> None:
    new = [call(number) for number in range(10, 15)]
    made = dispatcher(*new, *(call(number, due_ms=50) for number in range(3)), max_in_flight=1)
    assert list(finishing_each(made, 50)) == [0, 10, 1, 11, 2, 12, 13, 14]


def test_one_that_is_forgotten_is_not_made_and_blocks_nothing() -> None:
    made = dispatcher(call(0, "a", due_ms=50), call(1, "a"), call(2, "b", due_ms=50))
    made.forget({call(0).ticket})
    assert list(finishing_each(made, 1)) == [1]
    assert list(finishing_each(made, 50)) == [2]
    assert made.idle
