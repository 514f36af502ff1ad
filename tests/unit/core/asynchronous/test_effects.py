"""Which results of the functions of asynchronous operators are sent to the task."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.topology.async_nodes import ForeachAsync

ANSWERS = (ms.retry(in_=5), ms.delay(in_=5), ms.skip(), ms.dead_letter("cause"), ms.skip)


def result_of(function: Callable[[Any, Any], Any], key: Any, value: Any, **options: Any) -> Any:
    """Return what a call of ``foreach_async`` sends to the task."""
    builder = ms.StreamsBuilder()
    builder.stream("in").foreach_async(function, name="save", **options)
    node = builder.build().nodes["save"]
    assert isinstance(node, ForeachAsync)
    result = node.function(key, value)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def test_an_unused_result_is_not_sent_to_the_task() -> None:
    async def save(key: str, value: str) -> threading.Lock:
        return threading.Lock()

    assert result_of(lambda key, value: threading.Lock(), "k", "v") is None
    assert result_of(save, "k", "v") is None


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_sent_to_the_task_with_or_without_parentheses(answer: Any) -> None:
    assert result_of(lambda key, value: answer, "k", "v") is answer


def test_the_answers_and_exceptions_of_a_batch_are_sent_to_the_task() -> None:
    error = OSError("down")
    returned = (ms.skip(), error, threading.Lock(), ms.skip)

    async def save(keys: list[str], values: list[str]) -> Any:
        return returned

    for function in (save, lambda keys, values: returned):
        result = result_of(function, ["k"] * 4, ["v"] * 4, batch=(4, 10))
        assert result == [ms.skip(), error, None, ms.skip]


def test_a_batch_result_that_is_not_a_list_is_sent_to_the_task_unchanged() -> None:
    assert result_of(lambda keys, values: 5, ["k"], ["v"], batch=(4, 10)) == 5
