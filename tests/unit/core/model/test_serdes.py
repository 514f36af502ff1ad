from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

import penstock as ps
from penstock.core.model.errors import SerdeError
from penstock.core.model.serdes import change, quickly

ROUND_TRIPS: list[tuple[ps.Serde[Any], Any, bytes]] = [
    (ps.serdes.string, "", b""),
    (ps.serdes.string, "Ähre", b"\xc3\x84hre"),
    (ps.serdes.bytes, b"\x00\xff", b"\x00\xff"),
    (ps.serdes.int64, 1, b"\x00\x00\x00\x00\x00\x00\x00\x01"),
    (ps.serdes.int64, -(2**63), b"\x80\x00\x00\x00\x00\x00\x00\x00"),
    (ps.serdes.float64, 1.5, b"\x3f\xf8\x00\x00\x00\x00\x00\x00"),
    (ps.serdes.float64, -math.inf, b"\xff\xf0\x00\x00\x00\x00\x00\x00"),
    (
        ps.serdes.time_windowed(ps.serdes.string, 10),
        ps.Windowed("a", 258, 268),
        b"a\x00\x00\x00\x00\x00\x00\x01\x02",
    ),
    (
        ps.serdes.session_windowed(ps.serdes.string),
        ps.Windowed("a", 1, 2),
        b"a\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01",
    ),
    (ps.serdes.json, {"a": [1, None, "ä"]}, '{"a":[1,null,"ä"]}'.encode()),
]


@pytest.mark.parametrize(("serde", "value", "data"), ROUND_TRIPS)
def test_writes_what_java_writes_and_reads_it(serde: ps.Serde[Any], value: Any, data: bytes) -> None:
    assert serde.serialize(value) == data
    assert serde.deserialize(data) == value


@pytest.mark.parametrize(("serde", "value", "data"), ROUND_TRIPS)
def test_travels_to_other_processes(serde: ps.Serde[Any], value: Any, data: bytes) -> None:
    assert pickle.loads(pickle.dumps(serde)).serialize(value) == data


def test_pickle_keeps_any_object() -> None:
    value = {("a", 1): {1, 2}}
    assert ps.serdes.pickle.deserialize(ps.serdes.pickle.serialize(value)) == value


@pytest.mark.parametrize(
    ("serde", "value", "message"),
    [
        (ps.serdes.string, 1, r"serdes\.string takes str, but got int 1; .* key=\.\.\. or value=\.\.\."),
        (ps.serdes.string, b"x", r"serdes\.string takes str, but got bytes b'x'"),
        (ps.serdes.string, "\ud800", r"serdes\.string takes str, but got str '\\ud800'"),
        (ps.serdes.bytes, "x", r"serdes\.bytes takes bytes, but got str 'x'"),
        (ps.serdes.bytes, bytearray(b"x"), r"serdes\.bytes takes bytes, but got bytearray"),
        (ps.serdes.int64, "1", r"serdes\.int64 takes an int of 64 bits, but got str '1'"),
        (ps.serdes.int64, 1.0, r"serdes\.int64 takes an int of 64 bits, but got float 1\.0"),
        (ps.serdes.int64, 2**63, r"serdes\.int64 takes an int of 64 bits, but got int 9223372036854775808"),
        (ps.serdes.float64, "1", r"serdes\.float64 takes float, but got str '1'"),
        (ps.serdes.json, {1, 2}, r"serdes\.json cannot write set: "),
        (ps.serdes.json, math.nan, r"serdes\.json cannot write float: "),
        (ps.serdes.json, "\ud800", r"serdes\.json cannot write str: "),
        (
            ps.serdes.time_windowed(ps.serdes.string, 10),
            5,
            r"time_windowed takes Windowed\(.*, but got int 5",
        ),
        (ps.serdes.pickle, lambda: 1, r"serdes\.pickle cannot write function: "),
    ],
)
def test_a_misfit_names_the_serde_and_the_object(serde: ps.Serde[Any], value: Any, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        serde.serialize(value)


def test_a_misfit_does_not_repeat_a_long_object() -> None:
    with pytest.raises(SerdeError) as caught:
        ps.serdes.int64.serialize("x" * 1000)  # type: ignore[arg-type]
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (ps.serdes.int64, b"123"),
        (ps.serdes.float64, b""),
        (ps.serdes.string, b"\xff"),
        (ps.serdes.json, b"{"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(serde: ps.Serde[Any], data: bytes) -> None:
    with pytest.raises(Exception, match=r"\w"):
        serde.deserialize(data)


def test_only_objects_that_cannot_change_may_stay_in_memory() -> None:
    assert {
        s.name for s in (ps.serdes.string, ps.serdes.bytes, ps.serdes.int64, ps.serdes.float64) if s.immutable
    } == {
        "string",
        "bytes",
        "int64",
        "float64",
    }
    assert not ps.serdes.json.immutable
    assert not ps.serdes.pickle.immutable


def test_a_serde_of_ones_own() -> None:
    celsius = ps.serdes.of(lambda t: b"%d" % t, lambda b: int(b), name="celsius", immutable=True)
    assert (celsius.deserialize(celsius.serialize(20)), repr(celsius), celsius.immutable) == (
        20,
        "serdes.celsius",
        True,
    )


@pytest.mark.parametrize(
    "pair", [("new", "old"), ("new", None), (None, "old"), ("", ""), (None, None), ("", None), (None, "")]
)
def test_a_change_keeps_both_values_and_their_nulls(pair: tuple[str | None, str | None]) -> None:
    serde = change(ps.serdes.string)
    assert serde.deserialize(serde.serialize(pair)) == pair


@pytest.mark.parametrize(
    ("serde", "good", "bad"),
    [
        (ps.serdes.string, ["", "ü", "a\x00"], ["\ud800", 1, None]),
        (ps.serdes.int64, [0, -1, True, 1 << 62], [1 << 63, "1", None]),
        (ps.serdes.float64, [0.5, 3, float("inf")], ["1", None]),
    ],
    ids=["string", "int64", "float64"],
)
def test_many_objects_are_written_quickly_as_one_by_one(serde: Any, good: list[Any], bad: list[Any]) -> None:
    assert quickly(serde, good) == [serde.serialize(one) for one in good]
    for one in bad:
        assert quickly(serde, [*good, one]) is None


def test_other_serdes_have_no_quick_way() -> None:
    assert quickly(ps.serdes.json, [1]) is None
