"""Types of the serdes with a registry: each is written and read completely, or refused when the serde is created."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, computed_field

import millstream as ms
from millstream.core.model.errors import SettingsError


class Address(msgspec.Struct, rename="camel", frozen=True):
    post_code: str = ""


class Visitor(msgspec.Struct, rename="camel"):
    user_id: int = 0
    note_text: str | None = None
    home_address: Address = Address("1000")


class Pair(NamedTuple):
    first: int
    second: str


@dataclass
class Tuples:
    pair: Pair
    numbers: tuple[int, ...] = ()
    mixed: tuple[int, str] = (0, "")


@dataclass
class AvroTuples:
    names: tuple[str, ...] | None
    days: list[tuple[date, ...]] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Exact(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support decorators above property
    @property
    def twice(self) -> int:
        return 2 * self.number


class Point(BaseModel):
    x: int


def registry() -> str:
    return f"mock://{secrets.token_hex(4)}"


def avro(of: Any) -> ms.Serde[Any]:
    return ms.serdes.avro(of, registry=registry())


def json_schema(of: Any) -> ms.Serde[Any]:
    return ms.serdes.json_schema(of, registry=registry())


@pytest.mark.parametrize(
    ("create", "value"),
    [
        (avro, Visitor(5, "x", Address("2000"))),
        (avro, AvroTuples(("null", "a"), [(date(2026, 1, 1),)])),
        (avro, Tree("a", [Tree("b")])),
        (avro, Exact(number=1)),
        (json_schema, Visitor(5, "x", Address("2000"))),
        (json_schema, Tuples(Pair(1, "a"), (1, 2), (1, "b"))),
        (json_schema, Tree("a", [Tree("b")])),
        (json_schema, Exact(number=1)),
        (ms.serdes.typed, Exact(number=1)),
    ],
)
def test_an_object_round_trips(create: Callable[[Any], ms.Serde[Any]], value: Any) -> None:
    serde = create(type(value))
    assert serde.deserialize(serde.serialize(value)) == value


def other_item() -> type[Any]:
    return make_dataclass("Item", [("name", str)])


class Listed(msgspec.Struct, array_like=True):
    a: int


class Sparse(msgspec.Struct, omit_defaults=True):
    day: date = date(2026, 1, 1)


class Cash(msgspec.Struct, tag=True):
    cents: int


class Card(msgspec.Struct, tag=True):
    cents: int


class Payment(msgspec.Struct):
    by: Cash | Card


@pytest.mark.parametrize(
    ("create", "of", "why"),
    [
        (avro, Listed, r"Listed'> has array_like=True, but Avro writes every field by its name"),
        (avro, Sparse, r"Sparse'> has omit_defaults=True"),
        (avro, Payment, r"Payment'>: Avro's data has no tags, so Cash \| Card could not be told apart"),
        (avro, make_dataclass("Empty", []), r"Empty'> has no fields.*Add a field"),
        (
            avro,
            make_dataclass("Point2", [("point", Point)]),
            r"msgspec does not support .*Point'>, a type in",
        ),
        (
            avro,
            make_dataclass("Both", [("a", make_dataclass("Item", [("id", int)])), ("b", other_item())]),
            r"the schema of .*Both'> is not valid in Avro: redefined named type: Item. Rename one",
        ),
        (json_schema, make_dataclass("Any", [("it", object)]), r"msgspec does not support <class 'object'>"),
        (json_schema, make_dataclass("Point2", [("point", Point)]), r"msgspec does not support .*Point'>"),
        (avro, {"type": "recrd"}, r"the schema is not valid in Avro: .*recrd.* Correct the schema"),
    ],
)
def test_a_type_that_cannot_be_written_or_read_is_refused(
    create: Callable[[Any], Any], of: Any, why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        create(of)


def test_the_schema_of_a_renamed_struct_has_the_encoded_names() -> None:
    from millstream.drivers.schemas.record_types import avro_schema

    fields = avro_schema(Visitor)["fields"]
    assert [each["name"] for each in fields] == ["userId", "noteText", "homeAddress"]
    assert fields[2]["default"] == {"postCode": "1000"}
    assert (
        json.dumps(fields[2]["type"]["fields"]) == '[{"name": "postCode", "type": "string", "default": ""}]'
    )


def test_a_union_branch_can_be_named_in_a_record_with_a_timestamp() -> None:
    branches = [
        {"type": "record", "name": name, "fields": [{"name": "v", "type": "int"}]} for name in ("A", "B")
    ]
    at = {"type": "long", "logicalType": "timestamp-millis"}
    fields = [{"name": "u", "type": branches}, {"name": "at", "type": at}]
    serde = avro({"type": "record", "name": "Event", "fields": fields})
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert serde.deserialize(serde.serialize({"u": ("B", {"v": 1}), "at": noon})) == {
        "u": {"v": 1},
        "at": noon,
    }


@pytest.mark.parametrize("form", ["avro", "json_schema", "typed"])
def test_types_defined_in_a_function_are_resolved_or_named_in_the_error(form: str) -> None:
    @dataclass
    class Line:
        cents: int

    @dataclass
    class Order:
        lines: list[Line]

    class LineModel(BaseModel):
        cents: int

    class OrderModel(BaseModel):
        lines: list[LineModel]

    options = {} if form == "typed" else {"registry": f"mock://{form}-of-a-function"}
    with pytest.raises(
        SettingsError, match=r"Order.*name 'Line' is not defined, a type in it; define it at the top"
    ):
        getattr(ms.serdes, form)(Order, **options)
    orders = getattr(ms.serdes, form)(OrderModel, **options)
    order = OrderModel(lines=[LineModel(cents=5)])
    assert orders.deserialize(orders.serialize(order)) == order


def test_a_model_without_a_json_schema_is_refused() -> None:
    class Calls(BaseModel):
        back: Callable[[], int]

    with pytest.raises(SettingsError, match=r"Calls'> has no JSON Schema: .*Give the schema as text"):
        ms.serdes.json_schema(Calls, registry="mock://calls")
