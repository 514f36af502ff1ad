"""The columns of a store that is read from a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.edge.queries.stopped import _array, _columns


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
def test_values_that_arrow_cannot_represent_become_text(values: list[Any], expected: list[Any]) -> None:
    assert _array(values).to_pylist() == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64), ["key", "value"]),
        (
            ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64, timestamped=True),
            ["key", "value", "timestamp"],
        ),
        (
            ms.stores.window("s", ms.serdes.string, ms.serdes.int64, retention=60_000, size=1_000),
            ["key", "start", "value"],
        ),
        (
            ms.stores.session("s", ms.serdes.string, ms.serdes.int64, retention=60_000),
            ["key", "start", "end", "value"],
        ),
    ],
)
def test_a_store_without_entries_has_its_columns(spec: Any, expected: list[str]) -> None:
    assert _columns(spec) == expected
