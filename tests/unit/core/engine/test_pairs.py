"""Functions that return pairs: what is no pair fails the record, in both forms of an operator, although Python would unpack it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError

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
def test_what_is_no_pair_fails_the_record(define: Define, result: Any) -> None:
    said = re.escape(f"returned {result!r}; return a pair (") + "(new )?key, (new )?value"
    with pytest.raises(ProcessingError, match=f"the function of '(map|flat_map|group_by)' {said}"):
        run(define, lambda key, value: result)


@pytest.mark.parametrize("define", OPERATORS.values(), ids=OPERATORS.keys())
@pytest.mark.parametrize("kind", [lambda *both: both, lambda *both: [*both], Moved])
def test_a_pair_is_a_tuple_or_a_list(define: Define, kind: Callable[[Any, Any], Any]) -> None:
    assert run(define, lambda key, value: kind(value, key)) == [("v", "k"), ("w", "l")]


@pytest.mark.parametrize("define", OPERATORS.values(), ids=OPERATORS.keys())
def test_the_other_records_go_on(define: Define) -> None:
    skipping = ms.ErrorPolicies(process="skip")
    assert run(define, lambda key, value: "DE" if key == "k" else (key, value), policies=skipping) == [
        ("l", "w")
    ]


def test_a_long_result_is_shortened() -> None:
    with pytest.raises(ProcessingError, match=r"returned 'x{99}; return a pair"):
        run(OPERATORS["map"], lambda key, value: "x" * 1000)
