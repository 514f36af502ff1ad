"""Schemas of Python types, and round trips of objects."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import BaseModel

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
def test_a_dataclass_comes_back_through_avro(order: Order) -> None:
    assert through_avro(Order, order) == order


@given(ORDERS)
def test_a_dataclass_comes_back_through_json(order: Order) -> None:
    plain = json.loads(json.dumps(to_plain(Order, keep=False)(order)))
    assert from_plain(Order)(plain) == order


@pytest.mark.parametrize("value", [Customer(name="Ada", age=36), Customer(name="Bob"), Point(1, 2.5)])
def test_models_and_structs_come_back(value: Any) -> None:
    assert through_avro(type(value), value) == value
    assert from_plain(type(value))(to_plain(type(value), keep=False)(value)) == value


def test_the_schema_of_a_dataclass_has_its_fields_and_defaults() -> None:
    fields = {each["name"]: each for each in avro_schema(Order, "shop")["fields"]}
    assert avro_schema(Order, "shop")["namespace"] == "shop"
    assert fields["lines"]["type"]["items"]["fields"][1] == {"name": "count", "type": "long", "default": 1}
    assert fields["gift"]["type"] == ["null", "Line"]  # a name that is known already
    assert fields["size"]["type"]["symbols"] == ["small", "large"]
    assert "default" not in fields["prices"]
    assert json_schema(Order)["title"] == "Order"
    assert set(json_schema(Order)["required"]) == {"id", "lines", "size", "created", "day"}


def test_another_type_is_refused() -> None:
    with pytest.raises(SerdeError, match="expected Line, got str: 'tea'"):
        to_plain(Line, keep=True)("tea")


def test_a_field_without_a_counterpart_is_named() -> None:
    @dataclass
    class Odd:
        when: complex

    with pytest.raises(SettingsError, match=r"Odd\.when has the type .*complex.*no counterpart in Avro"):
        avro_schema(Odd)
