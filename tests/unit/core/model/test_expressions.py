"""Expressions mean the Python expressions they look like, for one value and for many."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps

A, B = ps.col("a"), ps.col("b")
PAIRS: list[tuple[ps.Expression, Callable[[int, int], Any]]] = [
    (A > B, lambda a, b: a > b),
    (A >= 3, lambda a, b: a >= 3),
    (A < B, lambda a, b: a < b),
    (A <= B, lambda a, b: a <= b),
    (A == B, lambda a, b: a == b),
    (A != B, lambda a, b: a != b),
    (A + B * 2 - 1, lambda a, b: a + b * 2 - 1),
    (1 + A, lambda a, b: 1 + a),
    (1 - A, lambda a, b: 1 - a),
    (2 * A, lambda a, b: 2 * a),
    (A / 2, lambda a, b: a / 2),
    (1 / (A * A + 1), lambda a, b: 1 / (a * a + 1)),
    ((A > 0) & (B > 0), lambda a, b: a > 0 and b > 0),
    ((A > 0) | (B > 0), lambda a, b: a > 0 or b > 0),
    (~(A > 0), lambda a, b: not a > 0),
]


@given(values=st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5))))
def test_an_expression_gives_what_python_gives(values: list[tuple[int, int]]) -> None:
    rows = [{"a": a, "b": b} for a, b in values]
    for expression, function in PAIRS:
        expected = [function(a, b) for a, b in values]
        assert [expression(row) for row in rows] == expected
        assert [expression("key", row) for row in rows] == expected
        assert list(expression.over(rows)) == expected


def test_an_expression_is_not_true_or_false() -> None:
    with pytest.raises(TypeError, match="join conditions"):
        bool(A > 0)


def test_an_expression_can_travel() -> None:
    assert pickle.loads(pickle.dumps((A > 1) & (B == "x")))({"a": 2, "b": "x"}) is True


def test_a_missing_field_fails_its_record_only() -> None:
    builder = ps.StreamsBuilder()
    paid = builder.stream("paid", value=ps.serdes.json).filter(ps.col("amount") > 10)
    paid.map_values(ps.col("amount") * 2).to("large", value=ps.serdes.json)
    policies = ps.ErrorPolicies(process="skip")
    driver = ps.testing.TopologyTestDriver(builder.build(), policies=policies)
    for value in ({"amount": 11}, {}, {"amount": 10}, {"amount": 12}):
        driver.pipe("paid", "k", value)
    assert [record.value for record in driver.read("large")] == [22, 24]
    assert driver.metrics()["dropped_records"] == 1
