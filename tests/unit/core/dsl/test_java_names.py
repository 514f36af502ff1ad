"""A method under its name in Kafka Streams is an error that names the method to use."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import millstream as ms

BUILDER = ms.StreamsBuilder()
STREAM = BUILDER.stream("in")
TABLE = BUILDER.table("table")
GROUPED = STREAM.group_by_key()
COGROUPED = GROUPED.cogroup(lambda key, value, total: total)


@pytest.mark.parametrize(
    ("handle", "name", "advice"),
    [
        (BUILDER, "globalTable", "use global_table"),
        (STREAM, "mapValues", "use map_values"),
        (STREAM, "groupByKey", "use group_by_key"),
        (STREAM.split(), "noDefault", "use no_default"),
        (TABLE, "toStream", "use to_stream"),
        (GROUPED, "windowedBy", "use windowed_by"),
        (COGROUPED, "windowedBy", "use windowed_by"),
        (BUILDER.global_table("global"), "storeName", "use store_name"),
        (TABLE, "to", r"use to_stream\(\).to\(\.\.\.\)"),
        (TABLE, "processValues", r"use to_stream\(\).process_values\(\.\.\.\)"),
        (TABLE, "foreach", r"use to_stream\(\).foreach\(\.\.\.\)"),
    ],
)
def test_the_error_names_the_method_to_use(handle: Any, name: str, advice: str) -> None:
    message = rf"{type(handle).__name__!r} object has no attribute {name!r}; {advice}$"
    with pytest.raises(AttributeError, match=message):
        getattr(handle, name)


@pytest.mark.parametrize(
    "handle", [BUILDER, STREAM, TABLE, GROUPED], ids=lambda handle: type(handle).__name__
)
@pytest.mark.parametrize("name", ["strem", "mapVaules", "_mapValues", "__mapValues__"])
def test_other_unknown_attributes_raise_the_error_of_python(handle: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"object has no attribute '{name}'$") as raised:
        getattr(handle, name)
    assert (raised.value.name, raised.value.obj) == (name, handle)


@pytest.mark.parametrize("handle", [STREAM, TABLE, GROUPED], ids=lambda handle: type(handle).__name__)
def test_handles_can_be_copied_and_inspected(handle: Any) -> None:
    assert vars(copy.copy(handle)) == vars(handle)
    assert not hasattr(handle, "mapValues")
    assert "mapValues" not in dir(handle)
    unset = type(handle).__new__(type(handle))
    assert not hasattr(unset, "_graph")
