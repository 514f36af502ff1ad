"""Unusable results of functions fail the record, in both forms of an operator.

A result that is not a pair is refused even if Python can unpack it. A coroutine or an answer of asynchronous operators
is refused even though it is truthy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, ProductionError

Define: TypeAlias = Callable[[ms.KStream[Any, Any], Callable[[Any, Any], Any]], ms.KStream[Any, Any]]


class Moved(NamedTuple):
    key: Any
    value: Any


OPERATORS: dict[str, Define] = {
    "map": lambda stream, pair: stream.map(pair),
    "map in rows": lambda stream, pair: stream.map(lambda key, value: (key, value)).map(pair),
    "flat_map": lambda stream, pair: stream.flat_map(lambda key, value: [pair(key, value)]),
    "group_by": lambda stream, pair: (
        stream.to_table().group_by(pair).reduce(lambda a, v: v, lambda a, v: a, store="groups").to_stream()
    ),
}


def run(define: Define, pair: Callable[[Any, Any], Any], **options: Any) -> list[tuple[Any, Any]]:
    builder = ms.StreamsBuilder()
    define(builder.stream("in"), pair).to("out")
    with ms.testing.TopologyTestDriver(builder.build(), **options) as driver:
        driver.pipe("in", "k", "v")
        driver.pipe("in", "l", "w")
        return [(record.key, record.value) for record in driver.read("out")]


@pytest.mark.parametrize("define", OPERATORS.values(), ids=OPERATORS.keys())
@pytest.mark.parametrize("result", ["DE", "DEU", ("a",), ("a", "b", "c"), {"a": 1, "b": 2}, 5], ids=repr)
def test_a_result_that_is_not_a_pair_fails_the_record(define: Define, result: Any) -> None:
    said = re.escape(f"returned {result!r}; return a pair (") + "(new )?key, (new )?value"
    with pytest.raises(ProcessingError, match=f"the function of '(map|flat_map|group_by)' {said}"):
        run(define, lambda key, value: result)


@pytest.mark.parametrize("define", OPERATORS.values(), ids=OPERATORS.keys())
@pytest.mark.parametrize("kind", [lambda *both: both, lambda *both: [*both], Moved])
def test_a_pair_may_be_a_tuple_or_a_list(define: Define, kind: Callable[[Any, Any], Any]) -> None:
    assert run(define, lambda key, value: kind(value, key)) == [("v", "k"), ("w", "l")]


@pytest.mark.parametrize("define", OPERATORS.values(), ids=OPERATORS.keys())
def test_a_skipped_record_does_not_affect_the_others(define: Define) -> None:
    skipping = ms.ErrorPolicies(process="skip")
    assert run(define, lambda key, value: "DE" if key == "k" else (key, value), policies=skipping) == [
        ("l", "w")
    ]


def test_a_long_result_is_shortened_in_the_error() -> None:
    with pytest.raises(ProcessingError, match=r"returned 'x{99}; return a pair"):
        run(OPERATORS["map"], lambda key, value: "x" * 1000)


async def later() -> bool:
    return False


PREDICATES: dict[str, Define] = {
    "filter": lambda stream, f: stream.filter(f),
    "filter_not": lambda stream, f: stream.filter_not(f),
    "filter in rows": lambda stream, f: stream.map_values(str).filter(f),
    "branch": lambda stream, f: stream.branch(f)[0],
    "filter of a table": lambda stream, f: stream.to_table().filter(f).to_stream(),
}


@pytest.mark.parametrize("define", PREDICATES.values(), ids=PREDICATES.keys())
class TestPredicates:
    @pytest.mark.parametrize(
        ("result", "said"),
        [
            (later, "a coroutine, which this operator would not await"),
            (ms.skip, r"ms.skip\(\), an answer of asynchronous operators; filter the records"),
            (lambda: ms.dead_letter("bad"), r"ms.dead_letter\(...\), an answer"),
            (ms.retry, r"ms.retry\(\), an answer"),
        ],
    )
    def test_must_not_return_a_coroutine_or_an_answer(
        self, define: Define, result: Callable[[], Any], said: str
    ) -> None:
        with pytest.raises(ProcessingError, match=f"the function returned {said}"):
            run(define, lambda key, value: result())

    @pytest.mark.parametrize(("true", "false"), [(True, False), (1, 0), ("x", ""), ([1], []), ("x", None)])
    def test_may_return_any_truthy_or_falsy_value(self, define: Define, true: Any, false: Any) -> None:
        kept = run(define, lambda key, value: true if value == "v" else false)
        assert [value for _, value in kept if value is not None] in (["v"], ["w"])


def test_an_action_may_return_anything_but_a_coroutine() -> None:
    assert run(lambda stream, f: stream.peek(f), lambda key, value: value) == [("k", "v"), ("l", "w")]
    with pytest.raises(ProcessingError, match="the function returned a coroutine"):
        run(lambda stream, f: stream.peek(f), lambda key, value: later())


UNUSABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "answer": (lambda: ms.dead_letter("bad"), r"ms.dead_letter\(...\), an answer of asynchronous operators"),
    "coroutine": (later, "a coroutine, which this operator would not await"),
}


@pytest.mark.parametrize(("result", "said"), UNUSABLE.values(), ids=UNUSABLE.keys())
@pytest.mark.parametrize("topic", ["out", lambda key, value, context: "out"], ids=["topic", "function"])
def test_a_sink_refuses_a_value_that_is_an_answer_or_a_coroutine(
    topic: Any, result: Callable[[], Any], said: str
) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(lambda value: result()).to(topic)
    driver = ms.testing.TopologyTestDriver(builder.build())
    with pytest.raises(ProductionError, match=f"a function upstream returned {said}"):
        driver.pipe("in", "k", "v")
