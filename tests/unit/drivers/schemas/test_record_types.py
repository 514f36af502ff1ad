"""Schemas of Python types, and round trips of objects."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime
from enum import Enum
from io import BytesIO
from random import random
from typing import Annotated, Any
from uuid import UUID, uuid4

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from millstream.core.model.errors import SerdeError, SettingsError
from millstream.drivers.schemas.record_types import avro_schema, from_plain, json_schema, to_plain


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    size: Size
    created: datetime
    day: date
    paid: bool = False
    note: str | None = None
    prices: dict[str, float] = field(default_factory=dict)
    signature: bytes = b""
    gift: Line | None = None


class Customer(BaseModel):
    name: str
    age: int | None = None


class Shipment(BaseModel):
    """A model whose fields have aliases in JSON."""

    order_id: str = Field(alias="orderId")
    parcels: list[Parcel] = []


class Parcel(BaseModel):
    net_grams: int = Field(validation_alias="netGrams", serialization_alias="netGrams")


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


ORDERS = some.builds(
    Order,
    some.uuids(),
    some.lists(some.builds(Line, some.text(), some.integers(-(2**63), 2**63 - 1)), max_size=3),
    some.sampled_from(Size),
    some.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=some.just(UTC)),
    some.dates(),
    some.booleans(),
    some.none() | some.text(),
    some.dictionaries(some.text(), some.floats(allow_nan=False), max_size=3),
    some.binary(),
    some.none() | some.builds(Line, some.text()),
)


def through_avro(of: type[Any], value: Any) -> Any:
    schema, file = fastavro.parse_schema(avro_schema(of)), BytesIO()
    fastavro.schemaless_writer(file, schema, to_plain(of, keep=True)(value))
    file.seek(0)
    return from_plain(of)(fastavro.schemaless_reader(file, schema, None))


@given(ORDERS)
def test_a_dataclass_round_trips_through_avro(order: Order) -> None:
    assert through_avro(Order, order) == order


@given(ORDERS)
def test_a_dataclass_round_trips_through_json(order: Order) -> None:
    plain = json.loads(json.dumps(to_plain(Order, keep=False)(order)))
    assert from_plain(Order)(plain) == order


SHIPMENT = Shipment.model_validate({"orderId": "a", "parcels": [{"netGrams": 250}]})


@pytest.mark.parametrize(
    "value", [Customer(name="Ada", age=36), Customer(name="Bob"), Point(1, 2.5), SHIPMENT]
)
def test_models_and_structs_round_trip(value: Any) -> None:
    assert through_avro(type(value), value) == value
    assert from_plain(type(value))(to_plain(type(value), keep=False)(value)) == value


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    size: Size
    id: UUID


@pydantic_dataclass
class Coupon:
    cents: Annotated[int, Field(gt=0)]
    until: date
    size: Size = Size.SMALL
    code: str = ""
    issued: datetime | None = None
    tags: set[str] = field(default_factory=set)
    others: list[Coupon] = field(default_factory=list)

    @field_validator("code")
    @classmethod
    def _stripped(cls, code: str) -> str:
        return code.strip()


@pydantic_dataclass
class SignedCoupon(Coupon):
    signature: bytes = b""


COUPON: dict[str, Any] = {"cents": 5, "until": date(2026, 1, 2), "issued": datetime(2026, 1, 2, tzinfo=UTC)}


@pytest.mark.parametrize(
    "coupon",
    [
        Coupon(**COUPON, tags={"a"}, others=[Coupon(**COUPON, code="b")]),
        SignedCoupon(**COUPON, signature=b"\xff\x00"),
    ],
)
def test_a_pydantic_dataclass_is_validated_when_it_is_read(coupon: Coupon) -> None:
    of = type(coupon)
    read, plain = from_plain(of), json.loads(json.dumps(to_plain(of, keep=False)(coupon)))
    assert through_avro(of, coupon) == coupon
    assert read(plain) == coupon
    assert read({**plain, "code": " c "}).code == "c"
    with pytest.raises(ValidationError, match="greater than 0"):
        read({**plain, "others": [{**plain, "cents": -5}]})


def test_strict_models_round_trip() -> None:
    """In JSON, a date is text, which a strict model refuses."""
    value = Strict(day=date(2026, 1, 31), size=Size.SMALL, id=UUID(int=7))
    assert through_avro(Strict, value) == value
    assert from_plain(Strict)(to_plain(Strict, keep=False)(value)) == value


class Written(BaseModel):
    net: int = Field(serialization_alias="netGrams")


class Read(BaseModel):
    net: int = Field(validation_alias="netGrams")


class Nested(BaseModel):
    inner: dict[str, list[Written] | None]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Written, "Written.net is written as 'netGrams' and read as 'net'"),
        (Read, "Read.net is written as 'net' and read as 'netGrams'"),
        (Nested, "Written.net is written as 'netGrams' and read as 'net'"),
    ],
)
def test_a_field_with_different_names_for_reading_and_writing_has_no_json_schema(
    model: Any, why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        json_schema(model)
    assert avro_schema(model)["fields"]


def test_json_has_the_aliases_of_its_schema() -> None:
    plain = to_plain(Shipment, keep=False)(SHIPMENT)
    assert plain == {"orderId": "a", "parcels": [{"netGrams": 250}]}
    assert plain.keys() == json_schema(Shipment)["properties"].keys()


def test_the_schema_of_a_dataclass_has_its_fields_and_defaults() -> None:
    fields = {each["name"]: each for each in avro_schema(Order, "shop")["fields"]}
    assert avro_schema(Order, "shop")["namespace"] == "shop"
    assert fields["lines"]["type"]["items"]["fields"][1] == {"name": "count", "type": "long", "default": 1}
    assert fields["gift"]["type"] == ["null", "Line"]  # already defined, so only its name
    assert fields["size"]["type"]["symbols"] == ["small", "large"]
    assert fields["prices"]["default"] == {}
    assert json_schema(Order)["title"] == "Order"
    assert set(json_schema(Order)["required"]) == {"id", "lines", "size", "created", "day"}


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(SerdeError, match="expected Line, got str: 'tea'"):
        to_plain(Line, keep=True)("tea")


def test_the_error_names_a_field_type_without_a_counterpart_in_avro() -> None:
    @dataclass
    class Odd:
        when: complex

    with pytest.raises(SettingsError, match=r"Odd\.when has the type .*complex.*no counterpart in Avro"):
        avro_schema(Odd)


@dataclass(frozen=True)
class Tag:
    name: str
    size: Size = Size.SMALL


@dataclass
class Grown:
    id: str
    tags: list[str] = field(default_factory=list)
    prices: dict[str, float] = field(default_factory=lambda: {"tea": 1.5})
    size: Size = Size.LARGE
    more: list[int] | None = field(default_factory=lambda: [1])
    either: int | str | None = "a"
    ratio: float | None = 0
    main: Tag = Tag("a")
    names: frozenset[str] = frozenset({"b", "a"})


class GrownModel(BaseModel):
    id: str
    tags: list[str] = []
    prices: dict[str, float] = Field(default_factory=dict)
    size: Size = Size.LARGE


class GrownStruct(msgspec.Struct):
    id: str
    tags: list[str] = []
    size: Size = Size.LARGE


@pytest.mark.parametrize("grown", [Grown, GrownModel, GrownStruct])
def test_data_of_the_previous_version_is_read_with_the_defaults_of_new_fields(grown: Any) -> None:
    before = fastavro.parse_schema(
        {"type": "record", "name": grown.__name__, "fields": [{"name": "id", "type": "string"}]}
    )
    file = BytesIO()
    fastavro.schemaless_writer(file, before, {"id": "a"})
    file.seek(0)
    now = json.loads(json.dumps(avro_schema(grown)))
    plain = fastavro.schemaless_reader(file, before, fastavro.parse_schema(now))
    assert from_plain(grown)(plain) == grown(id="a")
    assert through_avro(grown, grown(id="b")) == grown(id="b")


def test_a_default_factory_with_changing_results_gives_the_schema_no_default() -> None:
    @dataclass
    class Event:
        id: UUID = field(default_factory=uuid4)
        at: list[float] = field(default_factory=lambda: [random()])

    class Model(BaseModel):
        first: int = 1
        both: list[int] = Field(default_factory=lambda data: [data["first"]])

    assert not any("default" in each for each in avro_schema(Event)["fields"])
    assert [each.get("default") for each in avro_schema(Model)["fields"]] == [1, None]


class Colour(Enum):
    BLUE = "light-blue"


class Level(Enum):
    LOW = 1


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (Colour, r"the value of Colour\.BLUE, a type of Odd\.of, is 'light-blue', but Avro's names"),
        (list[Level], r"the value of Level\.LOW, a type of Odd\.of, is 1, but"),
        (tuple[int, str], r"Odd\.of has the type tuple\[int, str\], which has no counterpart"),
    ],
)
def test_types_and_names_that_avro_cannot_represent_are_refused(hint: Any, why: str) -> None:
    odd = make_dataclass("Odd", [("of", hint)])
    with pytest.raises(SettingsError, match=why):
        avro_schema(odd)
    with pytest.raises(SettingsError, match=r"the name of a field of Odd is 'größe'"):
        avro_schema(make_dataclass("Odd", [("größe", int)]))
    for namespace in ("my-shop", "shop..orders", ""):
        with pytest.raises(SettingsError, match=r"a part of namespace='.*' is '.*', but Avro's names"):
            avro_schema(Order, namespace)
    with pytest.raises(SettingsError, match=r"the name of .*Box\[int\].* is 'Box\[int\]'"):
        avro_schema(create_model("Box[int]", x=(int, 1)))


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    name: str


@pytest.mark.parametrize(
    "hint",
    [
        UUID | str,
        datetime | int,
        int | date | None,
        Cat | Dog,
        Cat | dict[str, str],
        dict[str, int] | Cat | None,
        list[int] | set[str],
    ],
)
def test_union_types_that_avro_cannot_distinguish_are_refused(hint: Any) -> None:
    for odd in (make_dataclass("Odd", [("of", hint)]), create_model("Odd", of=(hint, ...))):
        with pytest.raises(SettingsError, match=r"Odd\.of has the type .*Avro's data does not tell .* apart"):
            avro_schema(odd)


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (float | int, [1, 2**60 + 1, 1.0, 0.5]),
        (date | datetime, [date(2026, 1, 2), datetime(2026, 1, 2, 3, tzinfo=UTC)]),
        (bool | int | None, [True, 1, None]),
        (Annotated[int | None, "cents"] | str, [1, None, "a"]),
    ],
)
def test_every_type_of_a_union_round_trips(hint: Any, values: list[Any]) -> None:
    model = create_model("Either", of=(hint, ...))
    for value in values:
        back = through_avro(model, model(of=value)).of
        assert (type(back), back) == (type(value), value)
