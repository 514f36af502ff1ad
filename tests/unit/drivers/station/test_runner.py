"""Where a station runs a function: on its event loop, or on a thread."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from penstock.core.asynchronous.acting import Acting
from penstock.core.asynchronous.effects import Performing
from penstock.drivers.station.runner import _is_coroutine, ended_ms


async def coroutine(*args: Any) -> None: ...


def plain(*args: Any) -> None: ...


class Callable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize("wrap", [lambda function: function, Performing, Acting, partial])
def test_coroutine_functions_run_on_the_loop_however_they_are_wrapped(wrap: Any) -> None:
    assert _is_coroutine(wrap(coroutine))
    assert not _is_coroutine(wrap(plain))


def test_so_does_an_object_that_is_called_as_one() -> None:
    assert _is_coroutine(Callable())


def test_an_end_is_never_counted_before_it_was() -> None:
    for _ in range(1_000):
        before = time.time_ns()
        assert ended_ms() * 1_000_000 >= before
