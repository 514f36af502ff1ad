"""Serdes with a registry, without a server: written bytes, schema versions, and outages."""

from __future__ import annotations

import json
import pickle
import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import millstream as ms
from millstream.core.model.errors import DeserializationError, SerdeError, SettingsError, UnavailableError
from millstream.core.model.serdes import read, written
from millstream.drivers.schemas import registry_serde
from millstream.drivers.schemas.registry_serde import client_of, registry_of


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Order2:
    """The next version, with a field that has a default."""

    id: str
    cents: int
    currency: str = "EUR"


@pytest.fixture
def registry() -> str:
    return f"mock://{secrets.token_hex(4)}"


def test_data_has_the_wire_format_and_the_subject_of_the_topic(registry: str) -> None:
    serde = ms.serdes.avro(Order, registry=registry)
    data, headers = written(serde, Order("a", 250), "orders", "value", ())
    assert data is not None
    assert (data[0], int.from_bytes(data[1:5], "big"), headers) == (0, 1, ())
    assert read(serde, data, "orders", "value", ()) == Order("a", 250)
    assert client_of(registry_of(registry)).get_subjects() == ["orders-value"]


@pytest.mark.parametrize(
    ("subject", "expected"), [("record", "Order"), ("topic_record", "orders-Order"), ("topic", "orders-key")]
)
def test_subjects_follow_the_strategy(registry: str, subject: str, expected: str) -> None:
    written(ms.serdes.avro(Order, registry=registry, subject=subject), Order("a", 1), "orders", "key", ())
    assert client_of(registry_of(registry)).get_subjects() == [expected]


def test_a_reader_of_the_next_version_fills_in_the_default(registry: str) -> None:
    old = ms.serdes.avro(Order, registry=registry)
    schema = {**_schema(Order2), "name": "Order"}
    new = ms.serdes.avro(schema, registry=registry)
    data, _ = written(old, Order("a", 250), "orders", "value", ())
    assert read(new, data, "orders", "value", ()) == {"id": "a", "cents": 250, "currency": "EUR"}


def _schema(of: type[Any]) -> dict[str, Any]:
    from millstream.drivers.schemas.record_types import avro_schema

    return avro_schema(of)


def test_check_needs_a_registered_schema_and_never_uses_the_newest(registry: str) -> None:
    check = ms.serdes.avro(Order, registry=registry, register="check")
    with pytest.raises(SerdeError, match=r"avro: .*Not Found"):
        written(check, Order("a", 1), "orders", "value", ())
    never = ms.serdes.avro(Order, registry=registry, register="never")
    with pytest.raises(SerdeError, match="avro: "):
        written(never, Order("a", 1), "orders", "value", ())
    data, _ = written(ms.serdes.avro(Order, registry=registry), Order("a", 1), "orders", "value", ())
    again = ms.serdes.avro(Order, registry=registry, register="check")
    newest = ms.serdes.avro(Order, registry=registry, register="never")
    assert written(again, Order("a", 1), "orders", "value", ()) == (data, ())
    assert written(newest, Order("a", 1), "orders", "value", ()) == (data, ())


def test_json_schema_and_typed_json(registry: str) -> None:
    serde = ms.serdes.json_schema(Order, registry=registry)
    data, _ = written(serde, Order("a", 250), "orders", "value", ())
    assert data is not None
    assert json.loads(data[5:]) == {"id": "a", "cents": 250}
    assert read(serde, data, "orders", "value", ()) == Order("a", 250)
    typed = ms.serdes.typed(Order)
    assert typed.deserialize(typed.serialize(Order("a", 1))) == Order("a", 1)
    with pytest.raises(SerdeError, match="cents"):
        typed.deserialize(b'{"id":"a","cents":"much"}')


def message_class(name: str) -> Any:
    """Make a message as its compiler would."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="shop", syntax="proto3")
    field = file.message_type.add(name=name).field.add(name="text", number=1)
    field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[attr-defined, unused-ignore]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))


def test_protobuf(registry: str) -> None:
    note = message_class("Note")
    serde = ms.serdes.protobuf(note, registry=registry)
    data, _ = written(serde, note(text="tea"), "orders", "value", ())
    assert read(serde, data, "orders", "value", ()).text == "tea"
    with pytest.raises(SettingsError, match="not a generated class of a Protobuf message"):
        ms.serdes.protobuf(Order, registry=registry)


@pytest.mark.parametrize("data", [b"", b"plain text", b"\x01\x00\x00\x00\x01tea"])
def test_bytes_of_another_format_go_to_the_deserialize_policy(registry: str, data: bytes) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("orders", value=ms.serdes.avro(Order, registry=registry)).to("out", value=ms.serdes.json)
    with (
        ms.testing.TopologyTestDriver(builder.build()) as driver,
        pytest.raises(DeserializationError, match=r"failed in stage 'deserialize'.*avro: "),
    ):
        driver.pipe("orders", "k", data)
    policies = ms.ErrorPolicies(deserialize="skip")
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        driver.pipe("orders", "k", data)
        assert driver.read("out") == []


def test_an_outage_is_waited_for_and_then_no_policy_leaves_the_record_out(
    registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serde = ms.serdes.avro(Order, registry=registry)
    data, _ = written(serde, Order("a", 1), "orders", "value", ())
    answers = iter([SchemaRegistryError(503, 50301, "starting"), None])
    monkeypatch.setattr(registry_serde, "_PAUSE_S", 0)
    whole = registry_serde._reader

    def reader(spec: Any) -> Any:
        if (error := next(answers, None)) is not None:
            raise error
        return whole(spec)

    monkeypatch.setattr(registry_serde, "_reader", reader)
    assert read(ms.serdes.avro(Order, registry=registry), data, "orders", "value", ()) == Order("a", 1)

    def down(spec: Any) -> Any:
        raise SchemaRegistryError(503, 50301, "starting")

    monkeypatch.setattr(registry_serde, "_reader", down)
    monkeypatch.setattr(registry_serde, "_PATIENCE_S", 0)
    builder = ms.StreamsBuilder()
    builder.stream("orders", value=ms.serdes.avro(Order, registry=registry)).to("out", value=ms.serdes.json)
    policies = ms.ErrorPolicies(deserialize="skip")
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        failing = pytest.raises(UnavailableError, match=r"has not answered for 0 s.*No records are lost")
        with failing:
            driver.pipe("orders", "k", data)


def test_a_serde_travels_and_counts_in_a_store(registry: str) -> None:
    serde = pickle.loads(pickle.dumps(ms.serdes.avro(Order, registry=registry)))
    builder = ms.StreamsBuilder()
    orders = builder.stream("orders", value=serde).group_by_key()
    orders.reduce(lambda a, b: Order(a.id, a.cents + b.cents), store="totals").to_stream().to(
        "out", value=serde
    )
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        for cents in (100, 250):
            data, _ = written(serde, Order("a", cents), "orders", "value", ())
            driver.pipe("orders", "k", data)
        assert [record.value.cents for record in driver.read("out")] == [100, 350]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"registry": ""}, "needs an address"),
        ({"registry": {"url": "mock://x"}, "subject": "topics"}, "subject='topics' must be one of 'topic'"),
        ({"registry": "mock://x", "register": "always"}, "register='always' must be one of 'auto'"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_said(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        ms.serdes.avro(Order, **arguments)
    with pytest.raises(SettingsError, match="not a dataclass, pydantic model or msgspec Struct"):
        ms.serdes.avro(int, registry="mock://x")
