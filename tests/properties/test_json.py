"""``serdes.json`` writes the bytes and reads the objects of the standard library's json, whether msgspec is installed or not."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model import serde_formats


class _Level(IntEnum):
    LOW = 1


class _Text(str):
    __slots__ = ()


_STANDARD = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_TEXTS = (
    st.text() | st.text(st.characters(max_codepoint=0x7F)) | st.text(st.characters(categories=["Cs", "Cc"]))
)
_NUMBERS = (
    st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.floats(1e-6, 1e-3)
    | st.floats(1e15, 1e17)
    | st.decimals(allow_nan=False).map(float)
)
_SCALARS = st.none() | st.booleans() | _NUMBERS | _TEXTS | st.sampled_from([_Level.LOW, _Text("a")])
_KEYS = _TEXTS | _SCALARS
_OTHERS = st.binary() | st.datetimes() | st.uuids() | st.decimals() | st.sets(st.integers())
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda values: (
        st.lists(values)
        | st.lists(values).map(tuple)
        | st.dictionaries(_TEXTS, values)
        | st.dictionaries(_KEYS, values)
        | st.dictionaries(_TEXTS, values).map(OrderedDict)
    ),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    ["1", "-0", "01", "0.5", "1e400", "2e-7", "NaN", "-Infinity", "null", "true", str(2**64), "9" * 40]
)
_QUOTED = st.sampled_from(['"a"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\ud800"', '"\x01"', '"ä'])
_PIECES = st.sampled_from('{}[]:, \x00\ufeff"') | st.just('{"a":') | _NAMES | _QUOTED


def _outcome(function: Any, value: Any) -> Any:
    try:
        result = function(value)
    except Exception as error:
        return type(error), str(error)
    return result if isinstance(result, bytes) else repr(result)


def _standard_bytes(value: Any) -> bytes:
    try:
        return _STANDARD(value).encode()
    except (TypeError, ValueError) as error:
        raise ms.errors.SerdeError(f"serdes.json cannot write {type(value).__name__}: {error}") from None


@given(_VALUES | _OTHERS | st.dictionaries(_TEXTS, _OTHERS))
@example({"price": 1e16})
@example([0.0001, -0.0, 1e-5, math.inf])
@example([b"bytes"])
def test_json_writes_the_bytes_or_raises_the_error_of_the_standard_library(value: Any) -> None:
    assert _outcome(ms.serdes.json.serialize, value) == _outcome(_standard_bytes, value)


@given(_VALUES, st.booleans(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"]))
def test_json_reads_the_same_objects_as_the_standard_library(
    value: Any, ascii_only: bool, encoding: str
) -> None:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only)
    except TypeError:
        return
    data = text.encode(encoding, "surrogatepass")
    assert _outcome(ms.serdes.json.deserialize, data) == _outcome(json.loads, data)


@given(st.lists(_PIECES).map("".join).map(lambda text: text.encode(errors="surrogatepass")) | st.binary())
@example(b'{"a":1,"b":2,"a":3}')
@example(b"[NaN,1E400,-0,18446744073709551616]")
def test_json_reads_or_rejects_any_bytes_like_the_standard_library(data: bytes) -> None:
    assert _outcome(ms.serdes.json.deserialize, data) == _outcome(json.loads, data)


def test_json_rejects_a_value_that_contains_itself() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ms.errors.SerdeError, match="Circular"):
        ms.serdes.json.serialize(value)


def test_json_uses_msgspec_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_if_called(value: Any) -> Any:
        raise AssertionError(value)

    monkeypatch.setattr(serde_formats, "_to_json", fail_if_called)
    monkeypatch.setattr(json, "loads", fail_if_called)
    row = {"id": "ä", "cents": 2**63, "price": 9.5, "open": True, "note": None, "items": [{"n": 1}, (2, 0.0)]}
    data = ms.serdes.json.serialize(row)
    assert ms.serdes.json.deserialize(data) == {**row, "items": [{"n": 1}, [2, 0.0]]}


def test_json_works_without_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serde_formats, "msgspec", None)
    assert ms.serdes.json.deserialize(ms.serdes.json.serialize({"a": [1]})) == {"a": [1]}
