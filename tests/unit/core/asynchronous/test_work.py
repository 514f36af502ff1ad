"""How long waiting calls will keep an operator busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millstream.core.asynchronous.call import Call, Ticket
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.model.calls import Calls

CALL_MS = 10


def busy_dispatcher(keys: Sequence[str], **options: Any) -> Dispatcher:
    """Return a dispatcher whose first call took ten milliseconds, with one call for each of the keys afterwards."""
    dispatcher = Dispatcher(Calls(**{"max_in_flight": 2, **options}))
    for number, key in enumerate(["first", *keys]):
        dispatcher.offer(Call(Ticket("call", number, 1, "a"), print, (), key), 0)
    [first, *_] = dispatcher.start(0)
    dispatcher.end(first.number, [None], CALL_MS)
    dispatcher.start(CALL_MS)
    return dispatcher


@pytest.mark.parametrize(
    ("keys", "lasts_ms"),
    [
        ([], 0),
        (["a", "b"], 0),
        (["a", "b", "c", "d"], 10),
        (["a", "b", "c", "d", "e", "f"], 20),
        (["a", "b", "c", "d", "a", "b", "c", "d"], 30),  # one more call of each key
        (["a", "b", "c", "d", *["a"] * 100], 15),  # only one of the further calls of key a counts
        (["a", *["a"] * 100], 0),
    ],
)
def test_waiting_calls_that_may_run_and_one_more_per_key_are_counted(keys: list[str], lasts_ms: int) -> None:
    assert busy_dispatcher(keys).work(CALL_MS).lasts_ms == lasts_ms


def test_a_batch_takes_as_long_as_one_call() -> None:
    dispatcher = Dispatcher(Calls(max_in_flight=2, batch=(5, 0)))
    for number in range(35):
        dispatcher.offer(Call(Ticket("call", number, 1, "a"), print, (), str(number)), 0)
    [first, _] = dispatcher.start(0)
    dispatcher.end(first.number, [None] * 5, CALL_MS)
    dispatcher.start(CALL_MS)
    assert dispatcher.work(CALL_MS).lasts_ms == 4 * CALL_MS // 2


def test_calls_that_wait_for_a_rate_are_not_counted() -> None:
    assert busy_dispatcher(["a", "b", "c", "d"], rate_limit=(2, 60_000)).work(CALL_MS).lasts_ms == 0
