"""Serdes with a registry, without a server: written bytes, schema versions, and outages."""

from __future__ import annotations

import json
import pickle
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, make_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any, Literal
from uuid import UUID

import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pydantic import BaseModel, ConfigDict, SecretStr

import millstream as ms
from millstream.core.model.errors import DeserializationError, SerdeError, SettingsError, UnavailableError
from millstream.core.model.serdes import read, serialize_for_topic
from millstream.drivers.schemas import registry_serde
from millstream.drivers.schemas.registry_serde import SchemaFormat, client_of, registry_of


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
    data, headers = serialize_for_topic(serde, Order("a", 250), "orders", "value", ())
    assert data is not None
    assert (data[0], int.from_bytes(data[1:5], "big"), headers) == (0, 1, ())
    assert read(serde, data, "orders", "value", ()) == Order("a", 250)
    assert client_of(registry_of(registry)).get_subjects() == ["orders-value"]


@pytest.mark.parametrize(
    ("subject", "expected"), [("record", "Order"), ("topic_record", "orders-Order"), ("topic", "orders-key")]
)
def test_subjects_follow_the_strategy(registry: str, subject: str, expected: str) -> None:
    serialize_for_topic(
        ms.serdes.avro(Order, registry=registry, subject=subject), Order("a", 1), "orders", "key", ()
    )
    assert client_of(registry_of(registry)).get_subjects() == [expected]


def test_a_schema_without_a_name_has_no_subject_without_a_topic(registry: str) -> None:
    refused = pytest.raises(
        SerdeError, match=r"the schema has no name, so it has no subject in a store.*title"
    )
    for subject in ("topic", "record", "topic_record"):
        visits = ms.serdes.json_schema({"type": "object"}, registry=registry, subject=subject)
        with refused:
            visits.serialize({"page": "/"})
        if subject != "topic":
            with refused:
                serialize_for_topic(visits, {"page": "/"}, "visits", "value", ())
    assert client_of(registry_of(registry)).get_subjects() == []


def test_a_reader_of_the_next_version_fills_in_the_default(registry: str) -> None:
    old = ms.serdes.avro(Order, registry=registry)
    schema = {**_schema(Order2), "name": "Order"}
    new = ms.serdes.avro(schema, registry=registry)
    data, _ = serialize_for_topic(old, Order("a", 250), "orders", "value", ())
    assert read(new, data, "orders", "value", ()) == {"id": "a", "cents": 250, "currency": "EUR"}


def _schema(of: type[Any]) -> dict[str, Any]:
    from millstream.drivers.schemas.record_types import avro_schema

    return avro_schema(of)


def test_register_check_needs_a_registered_schema_and_register_never_uses_the_newest(registry: str) -> None:
    check = ms.serdes.avro(Order, registry=registry, register="check")
    with pytest.raises(
        SerdeError,
        match=r"avro: .*Not Found.*register='check' writes the values of topic 'orders' only with a schema that is registered",
    ):
        serialize_for_topic(check, Order("a", 1), "orders", "value", ())
    never = ms.serdes.avro(Order, registry=registry, register="never")
    with pytest.raises(SerdeError, match="avro: "):
        serialize_for_topic(never, Order("a", 1), "orders", "value", ())
    data, _ = serialize_for_topic(
        ms.serdes.avro(Order, registry=registry), Order("a", 1), "orders", "value", ()
    )
    again = ms.serdes.avro(Order, registry=registry, register="check")
    newest = ms.serdes.avro(Order, registry=registry, register="never")
    assert serialize_for_topic(again, Order("a", 1), "orders", "value", ()) == (data, ())
    assert serialize_for_topic(newest, Order("a", 1), "orders", "value", ()) == (data, ())


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: str


def test_a_field_that_the_schema_lacks_is_an_error(registry: str) -> None:
    fields = [{"name": "id", "type": "string"}, {"name": "note", "type": "string", "default": ""}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    auto = ms.serdes.avro(schema, registry=registry, subject="record")
    assert auto.deserialize(auto.serialize({"id": "a"})) == {"id": "a", "note": ""}
    refused = pytest.raises(SerdeError, match=r"avro: (Order|Open) has no field 'notes'; it has 'id'")
    with refused:
        auto.serialize({"id": "a", "notes": "gift"})
    with refused:
        ms.serdes.avro(Open, registry=registry).serialize(Open(id="a", notes="gift"))
    # register="never" uses the fields of the newest registered schema
    newest = ms.serdes.avro(schema, registry=registry, subject="record", register="never")
    assert newest.deserialize(newest.serialize({"id": "a", "notes": "gift"})) == {"id": "a", "note": ""}


def test_json_schema_and_typed_json_round_trip_a_dataclass(registry: str) -> None:
    serde = ms.serdes.json_schema(Order, registry=registry)
    data, _ = serialize_for_topic(serde, Order("a", 250), "orders", "value", ())
    assert data is not None
    assert json.loads(data[5:]) == {"id": "a", "cents": 250}
    assert read(serde, data, "orders", "value", ()) == Order("a", 250)
    typed = ms.serdes.typed(Order)
    assert typed.deserialize(typed.serialize(Order("a", 1))) == Order("a", 1)
    with pytest.raises(SerdeError, match="cents"):
        typed.deserialize(b'{"id":"a","cents":"much"}')


@dataclass
class Visit:
    at: datetime
    before: list[datetime]


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set another time zone for this process."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_away")
def test_a_time_without_a_zone_is_in_utc_on_every_host(registry: str) -> None:
    serde = ms.serdes.avro(Visit, registry=registry)
    noon = datetime(2026, 1, 1, 12)
    in_utc = noon.replace(tzinfo=UTC)
    assert serde.deserialize(serde.serialize(Visit(noon, [in_utc, noon]))) == Visit(in_utc, [in_utc, in_utc])


@pytest.mark.usefixtures("far_away")
def test_a_schema_may_have_times_without_a_zone(registry: str) -> None:
    at = {"type": "long", "logicalType": "local-timestamp-micros"}
    sent = {"type": "long", "logicalType": "timestamp-micros"}
    noon = datetime(2026, 1, 1, 12)
    for fields in ({"at": at}, {"at": at, "sent": sent}):
        schema = {
            "type": "record",
            "name": "Local",
            "fields": [{"name": name, "type": of} for name, of in fields.items()],
        }
        serde: ms.Serde[Any] = ms.serdes.avro(schema, registry=f"{registry}-{len(fields)}")
        back = serde.deserialize(serde.serialize(dict.fromkeys(fields, noon)))
        in_utc = {"at": noon, "sent": noon.replace(tzinfo=UTC)}
        assert back == {name: in_utc[name] for name in fields}


@dataclass
class Cash:
    cents: int


@dataclass
class Card:
    cents: int


@dataclass
class Payment:
    by: Cash | Card


@pytest.mark.parametrize(
    "made",
    [
        lambda: ms.serdes.avro(Payment, registry="mock://x"),
        lambda: ms.serdes.json_schema(Payment, registry="mock://x"),
        lambda: ms.serdes.protobuf(message_class("Payment"), Payment, registry="mock://x"),
    ],
)
def test_a_type_that_could_be_written_but_not_read_is_refused(made: Callable[[], Any]) -> None:
    with pytest.raises(
        SettingsError, match=r"Payment'>: Type unions may not contain more than one dataclass"
    ):
        made()


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_json_schema_refuses_numbers_that_json_lacks(registry: str, number: float) -> None:
    serde = ms.serdes.json_schema({"title": "Visit", "type": "object"}, registry=registry)
    with pytest.raises(SerdeError, match=f"json: {number} is not JSON"):
        serde.serialize({"pages": [{"seconds": number}]})


def message_class(name: str) -> Any:
    """Create a message class as the Protobuf compiler would."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="shop", syntax="proto3")
    field = file.message_type.add(name=name).field.add(name="text", number=1)
    field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[attr-defined, unused-ignore]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))


def test_protobuf_messages_round_trip_and_other_classes_are_refused(registry: str) -> None:
    note = message_class("Note")
    serde = ms.serdes.protobuf(note, registry=registry)
    data, _ = serialize_for_topic(serde, note(text="tea"), "orders", "value", ())
    assert read(serde, data, "orders", "value", ()).text == "tea"
    wrong: Any
    for wrong in (Order, note(text="tea"), timestamp_pb2):  # a dataclass, an instance, a module
        with pytest.raises(SettingsError, match="not a generated class of a Protobuf message"):
            ms.serdes.protobuf(wrong, registry=registry)
    with pytest.raises(SettingsError, match="is not dict, a dataclass"):
        ms.serdes.protobuf(note, int, registry=registry)


def basket_class() -> Any:
    """Create a message class with every kind of field."""
    file = descriptor_pb2.FileDescriptorProto(name="basket.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    size = file.enum_type.add(name="Size")
    for number, name in enumerate(("SMALL", "LARGE")):
        size.value.add(name=name, number=number)
    item = file.message_type.add(name="Item")
    basket = file.message_type.add(name="Basket")
    weights = basket.nested_type.add(name="WeightsEntry")
    weights.options.map_entry = True
    basket.oneof_decl.add(name="_note")
    kind = descriptor_pb2.FieldDescriptorProto
    for message, name, of, type_name, repeated in (
        (item, "sku", kind.TYPE_STRING, "", False),
        (item, "count", kind.TYPE_INT64, "", False),
        (weights, "key", kind.TYPE_STRING, "", False),
        (weights, "value", kind.TYPE_DOUBLE, "", False),
        (basket, "items", kind.TYPE_MESSAGE, ".shop.Item", True),
        (basket, "weights", kind.TYPE_MESSAGE, ".shop.Basket.WeightsEntry", True),
        (basket, "size", kind.TYPE_ENUM, ".shop.Size", False),
        (basket, "tags", kind.TYPE_STRING, "", True),
        (basket, "raw", kind.TYPE_BYTES, "", False),
        (basket, "packed_at", kind.TYPE_MESSAGE, ".google.protobuf.Timestamp", False),
        (basket, "note", kind.TYPE_STRING, "", False),
        (basket, "best", kind.TYPE_MESSAGE, ".shop.Item", False),
    ):
        field = message.field.add(name=name, number=len(message.field) + 1, type=of)
        field.label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
        if type_name:
            field.type_name = type_name
        if name == "note":
            field.proto3_optional, field.oneof_index = True, 0
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2.DESCRIPTOR.serialized_pb, file.SerializeToString()):
        pool.AddSerializedFile(known)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Basket"))


@dataclass
class Item:
    sku: str
    count: int


@dataclass
class Basket:
    items: list[Item]
    weights: dict[str, float]
    size: Literal["SMALL", "LARGE"]
    tags: list[str]
    raw: bytes
    packed_at: datetime | None = None
    note: str | None = None
    best: Item | None = None


BASKETS = [
    Basket(
        [Item("tea", 2**40)],
        {"tea": 0.5},
        "LARGE",
        ["a", "b"],
        b"\xff",
        datetime(2026, 1, 2, tzinfo=UTC),
        "",
        Item("", 0),
    ),
    Basket([], {}, "SMALL", [], b""),
]


@pytest.mark.parametrize("basket", BASKETS)
def test_protobuf_round_trips_dataclasses_and_dicts(registry: str, basket: Basket) -> None:
    message = basket_class()
    records, dicts = (ms.serdes.protobuf(message, of, registry=registry) for of in (Basket, dict))
    data, _ = serialize_for_topic(records, basket, "baskets", "value", ())
    assert read(records, data, "baskets", "value", ()) == basket
    assert read(dicts, data, "baskets", "value", ()) == asdict(basket)
    assert serialize_for_topic(dicts, asdict(basket), "baskets", "value", ())[0] == data
    as_message = read(ms.serdes.protobuf(message, registry=registry), data, "baskets", "value", ())
    assert [item.sku for item in as_message.items] == [item.sku for item in basket.items]
    assert as_message.HasField("best") == (basket.best is not None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"sizes": "LARGE"}, r"Basket has no field 'sizes'; it has 'items'"),
        ({"size": "HUGE"}, r"Basket.size cannot be 'HUGE': Size has 'SMALL', 'LARGE'"),
        ({"items": [{"sku": "tea", "count": "two"}]}, r"Basket.items.count cannot be 'two'"),
        ({"items": ["tea"]}, r"Basket.items needs a dict, got str: 'tea'"),
        ({"raw": 7}, r"Basket.raw cannot be 7"),
        ({"note": b"abc"}, r"Basket.note cannot be b'abc': it needs text, not bytes"),
        ({"note": ["x"]}, r"Basket.note cannot be \['x'\]: it needs text, not list"),
        ({"note": 5}, r"Basket.note cannot be 5: it needs text, not int"),
        ({"tags": ["a", None]}, r"Basket.tags cannot be \['a', None\]: it needs text, not NoneType"),
        ({"tags": "ab"}, r"Basket.tags cannot be 'ab': a repeated field needs a list, not str"),
        ({"items": {"sku": "tea"}}, r"Basket.items cannot be .*: a repeated field needs a list, not dict"),
    ],
)
def test_data_that_does_not_fit_a_message_is_refused(
    registry: str, data: dict[str, Any], reason: str
) -> None:
    serde = ms.serdes.protobuf(basket_class(), dict, registry=registry)
    with pytest.raises(SerdeError, match=reason):
        serialize_for_topic(serde, data, "baskets", "value", ())


class Number(IntEnum):
    SMALL = 0


def test_dates_decimals_and_uuids_become_text(registry: str) -> None:
    serde = ms.serdes.protobuf(basket_class(), dict, registry=registry)
    data = serde.serialize({"tags": [date(2026, 1, 2), Decimal("1.10"), UUID(int=5)]})
    assert serde.deserialize(data)["tags"] == ["2026-01-02", "1.10", str(UUID(int=5))]


@pytest.mark.parametrize("kind", [Number, int])
def test_a_number_type_for_an_enum_field_is_refused(kind: type[Any]) -> None:
    of = make_dataclass("Numbered", [("size", kind)])
    with pytest.raises(SettingsError, match=r"Numbered\.size has the type .*, but the enum Size is read as"):
        ms.serdes.protobuf(basket_class(), of, registry="mock://x")


@pytest.mark.parametrize("data", [b"", b"plain text", b"\x01\x00\x00\x00\x01tea"])
def test_bytes_in_another_format_are_handled_by_the_deserialize_policy(registry: str, data: bytes) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("orders", value=ms.serdes.avro(Order, registry=registry)).to("out", value=ms.serdes.json)
    with (
        ms.testing.TopologyTestDriver(builder.build()) as driver,
        pytest.raises(
            DeserializationError,
            match=r"failed in stage 'deserialize'.*avro: the bytes are not in Confluent's wire format",
        ),
    ):
        driver.pipe("orders", "k", data)
    policies = ms.ErrorPolicies(deserialize="skip")
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        driver.pipe("orders", "k", data)
        assert driver.read("out") == []


def test_the_error_for_an_unknown_schema_id_names_the_registry(registry: str) -> None:
    orders = ms.serdes.avro(Order, registry=registry)
    with pytest.raises(SerdeError, match=f"avro: the schema registry {registry} answers: Schema Not Found"):
        orders.deserialize(b"\x00\x00\x00\x00\x63\x02a\x02")


def test_the_serde_waits_during_an_outage_and_no_policy_skips_the_record(
    registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serde = ms.serdes.avro(Order, registry=registry)
    data, _ = serialize_for_topic(serde, Order("a", 1), "orders", "value", ())
    answers = iter([SchemaRegistryError(503, 50301, "starting"), None])
    monkeypatch.setattr(registry_serde, "_PAUSE_S", 0)
    original_reader = registry_serde._reader

    def reader(spec: Any) -> Any:
        if (error := next(answers, None)) is not None:
            raise error
        return original_reader(spec)

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


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"basic.auth.user.info": ms.secret.env("NO_SUCH_VARIABLE")},
            "has no environment variable NO_SUCH_VARIABLE",
        ),
        ({"basic.auth.user.info": "ada"}, "basic.auth.user.info must be in the form"),
        (
            {"ssl.ca.location": "/no/such.pem"},
            r"No such file.*check ssl\.ca\.location='/no/such\.pem' on this host",
        ),
        ({"no.such.setting": 1}, "Unrecognized properties: no.such.setting"),
    ],
)
def test_no_policy_skips_records_because_of_wrong_settings(settings: dict[str, Any], why: str) -> None:
    orders = ms.serdes.avro(Order, registry={"url": "http://127.0.0.1:9", **settings})
    builder = ms.StreamsBuilder()
    builder.stream("orders", value=orders).to("out", value=ms.serdes.json)
    builder.stream("texts", value=ms.serdes.string).map_values(lambda text: Order(text, 1)).to(
        "paid", value=orders
    )
    policies = ms.ErrorPolicies(deserialize="skip", produce="skip")
    for topic in ("orders", "texts"):
        with (
            ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver,
            pytest.raises(UnavailableError, match=f"cannot be asked: .*{why}.*No records are lost"),
        ):
            driver.pipe(topic, "k", b"\x00\x00\x00\x00\x01\x02a")


def test_a_pickled_serde_works_for_topics_and_stores(registry: str) -> None:
    serde = pickle.loads(pickle.dumps(ms.serdes.avro(Order, registry=registry)))
    builder = ms.StreamsBuilder()
    orders = builder.stream("orders", value=serde).group_by_key()
    orders.reduce(lambda a, b: Order(a.id, a.cents + b.cents), store="totals").to_stream().to(
        "out", value=serde
    )
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        for cents in (100, 250):
            data, _ = serialize_for_topic(serde, Order("a", cents), "orders", "value", ())
            driver.pipe("orders", "k", data)
        assert [record.value.cents for record in driver.read("out")] == [100, 350]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"registry": ""}, "needs an address"),
        ({"registry": 5}, "registry=5 is neither an address nor settings by name"),
        ({"registry": {"url": "mock://x", 1: 2}}, "name of a setting of the schema registry is text, not 1"),
        ({"registry": {"url": 5}}, "the setting 'url' of the schema registry is text or a reference"),
        (
            {"registry": {"url": "mock://x", "basic.auth.user.info": {"env": "INFO"}}},
            r"'basic.auth.user.info' of .* is text or a reference such as ms.secret.env\('NAME'\), not dict",
        ),
        ({"registry": {"url": "mock://x", "timeout": "5"}}, "the setting 'timeout' .* is a number, not '5'"),
        ({"registry": {"url": "mock://x", "max.retries": True}}, "the setting 'max.retries' .* not True"),
        ({"registry": {"url": "mock://x"}, "subject": "topics"}, "subject='topics' must be one of 'topic'"),
        ({"registry": "mock://x", "register": "always"}, "register='always' must be one of 'auto'"),
    ],
)
def test_invalid_arguments_are_refused_when_the_serde_is_created(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        ms.serdes.avro(Order, **arguments)
    with pytest.raises(SettingsError, match="not a dataclass, pydantic model or msgspec Struct"):
        ms.serdes.avro(int, registry="mock://x")


@pytest.mark.parametrize("schema", ["{", "string", {"type": {1}}])
def test_a_schema_that_is_not_json_is_refused_when_the_serde_is_created(schema: Any) -> None:
    for create in (ms.serdes.avro, ms.serdes.json_schema):
        with pytest.raises(SettingsError, match="the schema is not JSON"):
            create(schema, registry="mock://x")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            {"type": "object", "properties": {"cents": {"type": "integre"}}},
            r"'integre' .*, at \$\.properties\.cents\.type",
        ),
        ([], r"\[\] is not of type 'object'"),
        ('"object"', r"'object' is not of type 'object'"),
    ],
)
def test_a_schema_that_is_not_a_json_schema_is_refused_when_the_serde_is_created(
    schema: Any, why: str
) -> None:
    schema = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(SettingsError, match=f"the schema is not valid as a JSON Schema: {why}"):
        ms.serdes.json_schema(schema, registry="mock://x")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            {"type": "array", "items": "shop.Line"},
            "it does not define the type 'shop.Line'; .* cannot refer to other subjects",
        ),
        ({"type": "array"}, "'items' is missing"),
        ({"type": "record", "name": "R", "fields": [{"name": "x"}]}, "field 'x' is missing 'type'"),
    ],
)
def test_the_error_for_an_invalid_avro_schema_explains_the_cause(schema: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=f"the schema is not valid in Avro: .*{why}.*Correct the schema"):
        ms.serdes.avro(schema, registry="mock://x")


def _token(config: dict[str, str]) -> dict[str, str]:
    return {"bearer.auth.token": config["realm"]}


def test_settings_of_the_registry_may_contain_dictionaries(registry: str) -> None:
    settings = {
        "url": registry,
        "bearer.auth.credentials.source": "CUSTOM",
        "bearer.auth.custom.provider.function": _token,
        "bearer.auth.custom.provider.config": {"realm": "shop"},
    }
    serde = ms.serdes.avro(Order, registry=settings)
    assert serde.deserialize(serde.serialize(Order("a", 1))) == Order("a", 1)
    assert client_of(registry_of(settings)) is client_of(registry_of(settings))


def test_the_error_about_an_outage_contains_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(spec: Any) -> Any:
        raise SchemaRegistryError(503, 50301, "starting")

    monkeypatch.setattr(registry_serde, "_writer", down)
    monkeypatch.setattr(registry_serde, "_PATIENCE_S", 0)
    serde = ms.serdes.avro(Order, registry="https://ada:hunter2@one:8081,https://ada:hunter2@two:8081")
    with pytest.raises(UnavailableError, match="https://one:8081,https://two:8081") as raised:
        serde.serialize(Order("a", 1))
    assert "hunter2" not in str(raised.value)


def test_the_error_about_an_invalid_address_contains_no_password() -> None:
    serde = ms.serdes.avro(Order, registry="ftp://ada:hunter2@one:8081")
    with pytest.raises(UnavailableError, match=r"Invalid url ftp://one:8081") as raised:
        serde.serialize(Order("a", 1))
    assert "hunter2" not in str(raised.value)


def test_a_password_may_be_a_secret_str_and_is_not_shown() -> None:
    for info in ("ada:hunter2", SecretStr("ada:hunter2")):
        settings = {"url": "http://127.0.0.1:9", "basic.auth.user.info": info}
        assert client_of(registry_of(settings)) is client_of(registry_of(settings))
        assert "hunter2" not in repr(SchemaFormat("avro", None, "{}", registry_of(settings), "topic", "auto"))
