"""Excerpts: plain data of limited size for any value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.taps.excerpts import CUT, Excerpt


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Order:
    item: str
    where: Point


class Colour(IntEnum):
    RED = 1


class Broken:
    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (Colour.RED, 1),
        (2**70, hex(2**70)),
        (1.5, 1.5),
        (float("nan"), "nan"),
        ("tea", "tea"),
        ("\ud800", "?"),
        (b"tea", "tea"),
        (b"\xff\x00", "ff00"),
        (Order("tea", Point(1, 2)), {"item": "tea", "where": {"x": 1, "y": 2}}),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (date(2026, 1, 2), "2026-01-02"),
        ([1, Broken()], [1, "<Broken without a text: LookupError>"]),
    ],
)
def test_values_become_plain_data(value: Any, shown: Any) -> None:
    excerpt = Excerpt(1_000)
    assert (excerpt.of(value), excerpt.cut) == (shown, False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a" * 50, "a" * 20 + CUT),
        (("ä" * 50).encode(), "ä" * 3 + CUT),
        ([1] * 50, [1] * 6),
        ([[]] * 50, [[]] * 4),
        ({"key": "a" * 50}, {"key": "a" * 9 + CUT}),
    ],
)
def test_a_value_that_is_too_large_is_cut_and_marked_as_cut(value: Any, shown: Any) -> None:
    excerpt = Excerpt(20)
    assert (excerpt.of(value), excerpt.cut) == (shown, True)


def test_a_value_that_contains_itself_is_cut() -> None:
    value: list[Any] = []
    value.append(value)
    excerpt = Excerpt(1_000)
    assert json.dumps(excerpt.of(value)).count("[") == 20
    assert excerpt.cut


class Endless(dict[str, int]):
    """A dict whose items never end."""

    def items(self) -> Any:
        while True:
            yield "k", 1


def test_a_large_value_is_not_iterated_to_its_end() -> None:
    excerpt = Excerpt(100)
    assert excerpt.of(Endless()) == {"k": 1}
    assert excerpt.cut


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(value=VALUES, size=st.integers(1, 200))
def test_no_excerpt_is_much_larger_than_the_size_limit(value: Any, size: int) -> None:
    excerpt = Excerpt(size)
    shown = excerpt.of(value)
    written = json.dumps(shown)
    assert json.loads(written) == shown
    assert len(written) <= size + 120
