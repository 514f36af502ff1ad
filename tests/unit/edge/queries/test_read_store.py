"""The columns of a store that is read from a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.edge.queries.stopped import _array


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None, 3], [1, None, 3]),
        ([1, "a"], ["1", "a"]),
        ([1, 2**63], ["1", str(2**63)]),
        ([1, 10**30, None], ["1", str(10**30), None]),
        ([{"a": 10**30}], [str({"a": 10**30})]),
        (["\ud800", "a"], ["\\ud800", "a"]),
    ],
)
def test_what_arrow_cannot_represent_is_text(values: list[Any], expected: list[Any]) -> None:
    assert _array(values).to_pylist() == expected
