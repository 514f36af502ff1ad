from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import millstream as ms
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.model.errors import ArgumentError, ProcessingError, SerdeError
from millstream.core.model.serdes import SerdeContext, change, quickly, serialize_for_topic
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from unit.helpers import Host, sent

FOUR = b"\x00\x00\x00%c"
"""A small number as Java writes an int."""
ID = UUID("12345678-1234-5678-1234-567812345678")
ROUND_TRIPS: list[tuple[ms.Serde[Any], Any, bytes]] = [
    (ms.serdes.string, "", b""),
    (ms.serdes.string, "Ähre", b"\xc3\x84hre"),
    (ms.serdes.bytes, b"\x00\xff", b"\x00\xff"),
    (ms.serdes.int64, 1, b"\x00\x00\x00\x00\x00\x00\x00\x01"),
    (ms.serdes.int64, -(2**63), b"\x80\x00\x00\x00\x00\x00\x00\x00"),
    (ms.serdes.float64, 1.5, b"\x3f\xf8\x00\x00\x00\x00\x00\x00"),
    (ms.serdes.float64, -math.inf, b"\xff\xf0\x00\x00\x00\x00\x00\x00"),
    (
        ms.serdes.time_windowed(ms.serdes.string, 10),
        ms.Windowed("a", 258, 268),
        b"a\x00\x00\x00\x00\x00\x00\x01\x02",
    ),
    (
        ms.serdes.session_windowed(ms.serdes.string),
        ms.Windowed("a", 1, 2),
        b"a\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01",
    ),
    (ms.serdes.json, {"a": [1, None, "ä"]}, '{"a":[1,null,"ä"]}'.encode()),
    (ms.serdes.int16, 258, b"\x01\x02"),
    (ms.serdes.int16, -(2**15), b"\x80\x00"),
    (ms.serdes.int32, 16_909_060, b"\x01\x02\x03\x04"),
    (ms.serdes.int32, -1, b"\xff\xff\xff\xff"),
    (ms.serdes.float32, 1.5, b"\x3f\xc0\x00\x00"),
    (ms.serdes.float32, math.inf, b"\x7f\x80\x00\x00"),
    (ms.serdes.uuid, ID, b"12345678-1234-5678-1234-567812345678"),
    (ms.serdes.list_of(ms.serdes.string), [], b"\x01" + FOUR % 0),
    (
        ms.serdes.list_of(ms.serdes.string),
        ["a", None, "", "bc"],
        b"\x01" + FOUR % 4 + FOUR % 1 + b"a" + b"\xff\xff\xff\xff" + FOUR % 0 + FOUR % 2 + b"bc",
    ),
    (
        ms.serdes.list_of(ms.serdes.int32),
        [None, 7, None],
        b"\x00" + FOUR % 2 + FOUR % 0 + FOUR % 2 + FOUR % 3 + FOUR % 7,
    ),
    (ms.serdes.list_of(ms.serdes.uuid), [ID], b"\x00" + FOUR % 0 + FOUR % 1 + str(ID).encode()),
    (
        ms.serdes.list_of(ms.serdes.list_of(ms.serdes.int16)),
        [[1]],
        b"\x01" + FOUR % 1 + FOUR % 11 + b"\x00" + FOUR % 0 + FOUR % 1 + b"\x00\x01",
    ),
]


@pytest.mark.parametrize(("serde", "value", "data"), ROUND_TRIPS)
def test_a_serde_writes_and_reads_the_bytes_that_java_writes(
    serde: ms.Serde[Any], value: Any, data: bytes
) -> None:
    assert serde.serialize(value) == data
    assert serde.deserialize(data) == value


@pytest.mark.parametrize(("serde", "value", "data"), ROUND_TRIPS)
def test_a_serde_can_be_pickled(serde: ms.Serde[Any], value: Any, data: bytes) -> None:
    assert pickle.loads(pickle.dumps(serde)).serialize(value) == data


def test_the_pickle_serde_keeps_any_object() -> None:
    value = {("a", 1): {1, 2}}
    assert ms.serdes.pickle.deserialize(ms.serdes.pickle.serialize(value)) == value


@pytest.mark.parametrize(
    ("serde", "value", "message"),
    [
        (ms.serdes.string, 1, r"serdes\.string takes str, but got int 1; .* key=\.\.\. or value=\.\.\."),
        (ms.serdes.string, b"x", r"serdes\.string takes str, but got bytes b'x'"),
        (ms.serdes.string, "\ud800", r"serdes\.string takes str, but got str '\\ud800'"),
        (ms.serdes.bytes, "x", r"serdes\.bytes takes bytes, but got str 'x'"),
        (ms.serdes.bytes, bytearray(b"x"), r"serdes\.bytes takes bytes, but got bytearray"),
        (ms.serdes.int64, "1", r"serdes\.int64 takes an int of 64 bits, but got str '1'"),
        (ms.serdes.int64, 1.0, r"serdes\.int64 takes an int of 64 bits, but got float 1\.0"),
        (ms.serdes.int64, 2**63, r"serdes\.int64 takes an int of 64 bits, but got int 9223372036854775808"),
        (ms.serdes.float64, "1", r"serdes\.float64 takes float, but got str '1'"),
        (ms.serdes.float64, 10**400, r"serdes\.float64 takes float, but got int 1000"),
        (ms.serdes.json, {1, 2}, r"serdes\.json cannot write set: "),
        (ms.serdes.json, math.nan, r"serdes\.json cannot write float: "),
        (ms.serdes.json, "\ud800", r"serdes\.json cannot write str: "),
        (
            ms.serdes.time_windowed(ms.serdes.string, 10),
            5,
            r"time_windowed takes Windowed\(.*, but got int 5",
        ),
        (ms.serdes.int16, 2**15, r"serdes\.int16 takes an int of 16 bits, but got int 32768"),
        (ms.serdes.int32, 2**31, r"serdes\.int32 takes an int of 32 bits"),
        (ms.serdes.int32, "1", r"serdes\.int32 takes an int of 32 bits, but got str '1'"),
        (ms.serdes.float32, 1e40, r"serdes\.float32 takes a float of 32 bits, but got float 1e\+40"),
        (ms.serdes.uuid, str(ID), r"serdes\.uuid takes uuid\.UUID, but got str"),
        (ms.serdes.list_of(ms.serdes.int64), 5, r"serdes\.list_of takes a list, but got int 5"),
        (ms.serdes.list_of(ms.serdes.int64), ["x"], r"serdes\.int64 takes an int of 64 bits"),
        (ms.serdes.pickle, lambda: 1, r"serdes\.pickle cannot write function: "),
    ],
)
def test_the_error_for_an_object_that_does_not_fit_names_the_serde_and_the_object(
    serde: ms.Serde[Any], value: Any, message: str
) -> None:
    with pytest.raises(SerdeError, match=message):
        serde.serialize(value)


def test_the_error_for_an_object_that_does_not_fit_shortens_it() -> None:
    with pytest.raises(SerdeError) as caught:
        ms.serdes.int64.serialize("x" * 1000)  # type: ignore[arg-type]
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (ms.serdes.int64, b"123"),
        (ms.serdes.float64, b""),
        (ms.serdes.string, b"\xff"),
        (ms.serdes.json, b"{"),
        (ms.serdes.int16, b"1"),
        (ms.serdes.int32, b"12345"),
        (ms.serdes.float32, b""),
        (ms.serdes.uuid, b"12345678"),
        (ms.serdes.list_of(ms.serdes.string), b""),
        (ms.serdes.list_of(ms.serdes.string), b"\x02" + FOUR % 0),
        (ms.serdes.list_of(ms.serdes.string), b"\x01" + FOUR % 1 + FOUR % 3 + b"ab"),
        (ms.serdes.list_of(ms.serdes.string), b"\x00" + FOUR % 0 + FOUR % 1 + b"ab"),
        (ms.serdes.list_of(ms.serdes.int32), b"\x00" + FOUR % 0 + FOUR % 2 + FOUR % 7),
        (ms.serdes.list_of(ms.serdes.string), b"\x01\xff\xff\xff\xff"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(serde: ms.Serde[Any], data: bytes) -> None:
    with pytest.raises(Exception, match=r"\w"):
        serde.deserialize(data)


def test_only_objects_that_cannot_change_may_stay_in_memory() -> None:
    assert {
        s.name for s in (ms.serdes.string, ms.serdes.bytes, ms.serdes.int64, ms.serdes.float64) if s.immutable
    } == {
        "string",
        "bytes",
        "int64",
        "float64",
    }
    assert not ms.serdes.json.immutable
    assert not ms.serdes.pickle.immutable


@pytest.mark.parametrize("accepts", [str, [str], ("str",)])
def test_the_accepted_types_of_a_serde_must_be_a_tuple_of_types(accepts: Any) -> None:
    with pytest.raises(ArgumentError, match="of: accepts must be a tuple of types"):
        ms.serdes.of(str.encode, bytes.decode, accepts=accepts)


def test_a_custom_serde_has_the_given_functions_and_name() -> None:
    celsius = ms.serdes.of(lambda t: b"%d" % t, lambda b: int(b), name="celsius", immutable=True)
    assert (celsius.deserialize(celsius.serialize(20)), repr(celsius), celsius.immutable) == (
        20,
        "serdes.celsius",
        True,
    )


@pytest.mark.parametrize(
    "pair", [("new", "old"), ("new", None), (None, "old"), ("", ""), (None, None), ("", None), (None, "")]
)
def test_a_change_keeps_both_values_and_their_nulls(pair: tuple[str | None, str | None]) -> None:
    serde = change(ms.serdes.string)
    assert serde.deserialize(serde.serialize(pair)) == pair


@pytest.mark.parametrize(
    ("serde", "good", "bad"),
    [
        (ms.serdes.string, ["", "ü", "a\x00"], ["\ud800", 1, None]),
        (ms.serdes.int64, [0, -1, True, 1 << 62], [1 << 63, "1", None]),
        (ms.serdes.float64, [0.5, 3, float("inf")], ["1", None]),
    ],
    ids=["string", "int64", "float64"],
)
def test_the_fast_path_writes_many_objects_as_one_by_one(serde: Any, good: list[Any], bad: list[Any]) -> None:
    assert quickly(serde.serialize, good) == [serde.serialize(value) for value in good]
    for value in bad:
        assert quickly(serde.serialize, [*good, value]) is None


def test_other_serdes_have_no_fast_path() -> None:
    assert quickly(ms.serdes.json.serialize, [1]) is None


def test_the_fast_path_reads_many_strings_as_one_by_one() -> None:
    read = ms.serdes.string.deserialize
    assert quickly(read, [b"", "ü".encode()]) == ["", "ü"]
    for item in (b"\xff", None, "text"):
        assert quickly(read, [b"a", item]) is None


@pytest.mark.parametrize("convert", [ms.serdes.bytes.serialize, ms.serdes.bytes.deserialize])
def test_bytes_are_not_copied(convert: Any) -> None:
    items = [b"", b"a", None]
    assert quickly(convert, items) is items
    for item in ("text", bytearray(b"a"), 1):
        assert quickly(convert, [b"a", item]) is None


def test_a_store_rounds_values_to_32_bits_when_they_are_put() -> None:
    store = open_store(ms.stores.key_value("s", ms.serdes.string, ms.serdes.float32), MemoryStores())
    store.put("a", 0.1)
    assert store.get("a") == ms.serdes.float32.deserialize(ms.serdes.float32.serialize(0.1)) != 0.1


@pytest.mark.parametrize("written", ["text", 5, bytearray(b"x")])
def test_a_custom_serde_must_write_bytes(written: object) -> None:
    kind = type(written).__name__
    message = f"serialize of the serde 'own' returned {kind}, not bytes; correct the function"
    plain = ms.serdes.of(lambda value: written, bytes.decode, name="own")  # type: ignore[arg-type, return-value]
    with pytest.raises(SerdeError, match=message):
        plain.serialize("a")
    in_context = ms.serdes.in_context(
        lambda value, context: written,  # type: ignore[arg-type, return-value]
        lambda data, context: data.decode(),
        name="own",
    )
    with pytest.raises(SerdeError, match=message):
        in_context.serialize("a")
    with pytest.raises(SerdeError, match=message):
        serialize_for_topic(in_context, "a", "out", "value", ())


def test_a_custom_serde_may_write_null_and_equals_one_with_the_same_functions() -> None:
    def null(value: str) -> Any:
        return None

    assert ms.serdes.of(null, bytes.decode).serialize("a") is None
    assert ms.serdes.of(null, bytes.decode) == ms.serdes.of(null, bytes.decode)


# A type checker refuses these functions, but users may work without one.
NULL: Any = ms.serdes.of(lambda value: None, bytes.decode, name="own")  # type: ignore[arg-type, return-value]
NULL_IN_CONTEXT: Any = ms.serdes.in_context(
    lambda value, context: None,  # type: ignore[arg-type, return-value]
    lambda data, context: data.decode(),
    name="own",
)
WINDOWS = ms.JoinWindows(5, 5, 0)
KEPT_BY: dict[str, Callable[[ms.StreamsBuilder], Any]] = {
    "a count": lambda builder: builder.stream("in").group_by_key(key=NULL).count(),
    "a count, serde in context": lambda builder: (
        builder.stream("in").group_by_key(key=NULL_IN_CONTEXT).count()
    ),
    "a count in windows": lambda builder: (
        builder.stream("in").group_by_key(key=NULL).windowed_by(ms.TumblingWindows(10, grace=0)).count()
    ),
    "a lookup": lambda builder: builder.stream("in").join(builder.table("rows", key=NULL), max),
    "a stream that is joined": lambda builder: builder.stream("in", value=NULL).left_join(
        builder.stream("other"), max, windows=WINDOWS
    ),
}


@pytest.mark.parametrize("commit_every", [1, 20])
@pytest.mark.parametrize("keep", KEPT_BY.values(), ids=KEPT_BY)
def test_a_null_where_a_store_needs_bytes_names_the_serde_and_follows_the_policy(
    keep: Any, commit_every: int
) -> None:
    builder = ms.StreamsBuilder()
    keep(builder)
    topology = builder.build()

    def run(**options: Any) -> None:
        with ms.testing.TopologyTestDriver(topology, commit_every=commit_every, **options) as driver:
            for _ in range(20):
                driver.pipe("in", b"a", b"b")

    with pytest.raises(
        ProcessingError, match="serialize of the serde 'own' returned None where a null is impossible"
    ):
        run()
    run(policies=ErrorPolicies(process="skip"))


def test_a_windowed_key_cannot_be_null() -> None:
    for serde in (ms.serdes.time_windowed(NULL, 5), ms.serdes.session_windowed(NULL)):
        with pytest.raises(SerdeError, match="'own' returned None where a null is impossible"):
            serde.serialize(ms.Windowed("a", 0, 5))


class TestInContext:
    """Serdes that receive topic and headers, as ``Serializer.serialize(topic, headers, data)`` does."""

    def test_headers_that_no_topic_can_contain_are_refused(self) -> None:
        def write(value: str, context: Any) -> bytes:
            context.headers.append(("schema", 1))
            return value.encode()

        serde = ms.serdes.in_context(write, lambda data, context: data.decode())
        with pytest.raises(TypeError, match="headers of a record must be pairs"):
            serialize_for_topic(serde, "a", "out", "value", ())

    seen: list[tuple[str | None, str, tuple[Any, ...]]]

    def serde(self) -> ms.Serde[Any]:
        self.seen = []

        def write(text: str, context: SerdeContext) -> bytes:
            self.seen.append((context.topic, context.side, tuple(context.headers)))
            context.headers.append((f"schema-{context.side}", b"7"))
            return text.encode()

        def read(data: bytes, context: SerdeContext) -> str:
            self.seen.append((context.topic, context.side, tuple(context.headers)))
            return data.decode()

        return ms.serdes.in_context(write, read, name="with-schema")

    def test_a_sink_passes_topic_side_and_headers_and_sends_appended_headers(self) -> None:
        serde = self.serde()
        builder = ms.StreamsBuilder()
        builder.stream("in").to("out", key=serde, value=serde)
        outcome = Host(builder.build()).run("in", ("a", "x", 1, [("h", b"1")]))
        assert self.seen == [
            ("out", "key", (("h", b"1"),)),
            ("out", "value", (("h", b"1"), ("schema-key", b"7"))),
        ]
        ((_, records),) = outcome.sends
        assert records.headers == [(("h", b"1"), ("schema-key", b"7"), ("schema-value", b"7"))]

    def test_a_source_passes_topic_side_and_headers(self) -> None:
        serde = self.serde()
        builder = ms.StreamsBuilder()
        builder.stream("in", key=serde, value=serde).to("out", key=ms.serdes.string, value=ms.serdes.string)
        outcome = Host(builder.build()).run("in", ("a", "x", 1, [("h", b"1")]), ("b", None, 2))
        assert sent(outcome) == [("a", "x", 1), ("b", None, 2)]
        assert self.seen == [
            ("in", "key", (("h", b"1"),)),
            ("in", "value", (("h", b"1"),)),
            ("in", "key", ()),
        ]

    def test_a_store_passes_neither_topic_nor_headers(self) -> None:
        serde = self.serde()
        builder = ms.StreamsBuilder()
        builder.stream("in").map_values(lambda value: value).to_table(store="s", value=serde)
        Host(builder.build()).run("in", ("a", "x", 1, [("h", b"1")]))
        assert set(self.seen) == {(None, "value", ())}

    def test_the_test_driver_writes_and_reads_with_topic_and_headers(self) -> None:
        serde = self.serde()
        builder = ms.StreamsBuilder()
        builder.stream("in", value=serde).to("out", value=serde)
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("in", "k", "x", headers=(("h", b"1"),))
            (record,) = driver.read("out")
        schema = ("schema-value", b"7")
        assert record.headers == (("h", b"1"), schema, schema)
        assert self.seen == [
            ("in", "value", (("h", b"1"),)),
            ("in", "value", (("h", b"1"), schema)),
            ("out", "value", (("h", b"1"), schema)),
            ("out", "value", (("h", b"1"), schema, schema)),
        ]
