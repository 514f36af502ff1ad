"""Expressions compute the same as the Python expressions they look like, for one value and for many."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import ProcessingError

A, B = ms.col("a"), ms.col("b")
PAIRS: list[tuple[ms.Expression, Callable[[int, int], Any]]] = [
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
    (A // 2, lambda a, b: a // 2),
    (7 // (A * A + 1), lambda a, b: 7 // (a * a + 1)),
    (A % 3, lambda a, b: a % 3),
    (7 % (A * A + 1), lambda a, b: 7 % (a * a + 1)),
    (A**2, lambda a, b: a**2),
    (2 ** abs(A), lambda a, b: 2 ** abs(a)),
    (-A, lambda a, b: -a),
    ((B != 0) & (A / B > 1), lambda a, b: b != 0 and a / b > 1),
    ((B == 0) | (A % B == 0), lambda a, b: b == 0 or a % b == 0),
    (True & (A > 1), lambda a, b: a > 1),
    (False | (A > 1), lambda a, b: a > 1),
    (A.is_null(), lambda a, b: a is None),
    (A.is_not_null(), lambda a, b: a is not None),
    (A.is_in({1, 2}), lambda a, b: a in {1, 2}),
    (ms.col("c", default=3) + A, lambda a, b: 3 + a),
    (ms.col("a", default=3) + B, lambda a, b: a + b),
    (ms.col()["a"], lambda a, b: a),
    (ms.struct("b", total=A + B, kind="x"), lambda a, b: {"b": b, "total": a + b, "kind": "x"}),
]


@given(values=st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5))))
def test_an_expression_computes_the_same_as_python(values: list[tuple[int, int]]) -> None:
    rows = [{"a": a, "b": b} for a, b in values]
    for expression, function in PAIRS:
        expected = [function(a, b) for a, b in values]
        assert [expression(row) for row in rows] == expected
        assert [expression("key", row) for row in rows] == expected
        assert list(expression.over(rows)) == expected


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="join conditions"):
        bool(A > 0)


def test_the_errors_of_other_misuse_say_what_to_write_instead() -> None:
    with pytest.raises(TypeError, match="is_in"):
        assert 1 in A
    with pytest.raises(TypeError, match="no elements"):
        list(A)
    with pytest.raises(TypeError, match="neither true nor false"):
        assert 1 < A < 3
    with pytest.raises(TypeError, match="write name="):
        ms.struct(A)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least one field"):
        ms.struct()
    with pytest.raises(TypeError, match="no field twice"):
        ms.struct("a", a=B)


@pytest.mark.parametrize(
    "text",
    [
        "(col('a') > 10) & (col('b') == 'x')",
        "~(col('a').is_null() | ((col('a') % 2) == 0))",
        "(col('a') + 1) * (-col('b'))",
        "col('a', default=None)['b'].is_in([1, 2])",
        "(abs(col()) ** 2) >= 0.5",
        "struct('a', c=1 - col('b'), d=struct('a'))",
    ],
)
def test_an_expression_is_shown_as_it_is_written_with_parentheses_around_its_parts(text: str) -> None:
    expression = eval(text, {"col": ms.col, "struct": ms.struct})
    assert repr(expression) == text
    assert repr(pickle.loads(pickle.dumps(expression))) == text


def test_a_description_shows_what_expressions_compute() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").filter(A > 10, name="large").map_values(ms.struct("a"), name="short").to("out")
    assert (
        "    Processor: large (stores: [])\n      computes col('a') > 10\n      --> short\n"
        in builder.build().describe()
    )


def test_an_expression_can_be_pickled() -> None:
    unpickled = pickle.loads(pickle.dumps((A > 1) & (ms.col("b", default="x") == "x")))
    assert unpickled({"a": 2}) is True


def test_a_null_check_guards_the_following_conditions_in_columns_too() -> None:
    rows = [{"a": 11}, {"a": None}, {"a": 3}]
    guarded = A.is_not_null() & (A > 10)
    assert list(guarded.over(rows)) == [True, False, False]


def test_a_key_can_be_an_expression() -> None:
    builder = ms.StreamsBuilder()
    paid = builder.stream("paid", value=ms.serdes.json).group_by(ms.col("user"), value=ms.serdes.json)
    paid.count(store="counts").to_stream().to("counts", value=ms.serdes.json)
    driver = ms.testing.TopologyTestDriver(builder.build())
    for user in ("ann", "bob", "ann"):
        driver.pipe("paid", None, {"user": user})
    assert [(record.key, record.value) for record in driver.read("counts")] == [
        ("ann", 1),
        ("bob", 1),
        ("ann", 2),
    ]


def test_a_missing_field_fails_only_its_record() -> None:
    builder = ms.StreamsBuilder()
    paid = builder.stream("paid", value=ms.serdes.json).filter(ms.col("amount") > 10)
    paid.map_values(ms.col("amount") * 2).to("large", value=ms.serdes.json)
    policies = ms.ErrorPolicies(process="skip")
    driver = ms.testing.TopologyTestDriver(builder.build(), policies=policies)
    for value in ({"amount": 11}, {}, {"amount": 10}, {"amount": 12}):
        driver.pipe("paid", "k", value)
    assert [record.value for record in driver.read("large")] == [22, 24]
    assert driver.metrics()["dropped_records"] == 1


@pytest.mark.parametrize(
    ("expression", "value", "message"),
    [
        (
            ms.col("amount") > 3,
            "v",
            r"col\('amount'\): the value is str 'v', not a dict; set value=ms.serdes.json on the source$",
        ),
        (
            ms.col("amount", default=0) > 3,
            "v",
            r"col\('amount', default=0\): the value is str 'v', not a dict",
        ),
        (ms.col("amount") > 3, [1], r"col\('amount'\): the value is list \[1\], not a dict$"),
        (ms.col("amount") > 3, None, r"col\('amount'\): the value is NoneType None, not a dict$"),
        (
            ms.col("amount") > 3,
            {"a": 1, "b": 2},
            r"no field 'amount' \(there are: a, b\); use ms.col\('amount', default=...\) if it may be missing$",
        ),
    ],
)
def test_a_value_without_the_field_is_refused(expression: ms.Expression, value: object, message: str) -> None:
    with pytest.raises(ProcessingError, match=message):
        expression(value)


def test_a_record_without_the_field_fails() -> None:
    builder = ms.StreamsBuilder(default_value_serde=ms.serdes.json)
    builder.stream("in").filter(ms.col("amount") > 3).to("out")
    driver = ms.testing.TopologyTestDriver(builder.build())
    with pytest.raises(ProcessingError, match=r"KSTREAM-FILTER-0000000001 failed .*: no field 'amount'"):
        driver.pipe("in", "k", {"a": 1})
