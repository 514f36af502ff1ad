"""Data with fields that its Avro schema lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SerdeError
from millstream.drivers.schemas.unknown_fields import check_of


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": of} for n, of in fields.items()]}


LINE = record("Line", cents="int")
CARD = record("Card", number="string")
ORDER = record(
    "Order",
    id="string",
    note=["null", "string"],
    lines={"type": "array", "items": LINE},
    by={"type": "map", "values": ["null", "Line"]},
    paid=["null", CARD, record("Cash", cents="int")],
    free=["null", {"type": "map", "values": "int"}, "Card"],
    parent=["null", "Order"],
)
WHOLE = {
    "id": "a",
    "note": None,
    "lines": [{"cents": 1}, {"cents": 2}],
    "by": {"x": {"cents": 1}, "y": None},
    "paid": {"cents": 5},
    "free": {"any": 1},
    "parent": None,
}


@pytest.mark.parametrize(
    "data",
    [
        WHOLE,
        {**WHOLE, "parent": WHOLE},
        {**WHOLE, "paid": ("shop.Cash", {"cents": 1})},
        {**WHOLE, "paid": {"-type": "shop.Cash", "cents": 1}},
        {"id": "a", "lines": (), "by": {}},  # nullable fields may be missing
    ],
)
def test_data_with_known_fields_is_written(data: dict[str, Any]) -> None:
    orders: ms.Serde[Any] = ms.serdes.avro({**ORDER, "namespace": "shop"}, registry="mock://known-fields")
    assert orders.deserialize(orders.serialize(data))["id"] == "a"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"notes": "x"}, "Order has no field 'notes'; it has 'id', 'note', "),
        ({"lines": [{"cents": 1}, {"cents": 2, "vat": 3, "tip": 1}]}, "Line has no field 'tip', 'vat'"),
        ({"by": {"x": {"cent": 1}}}, "Line has no field 'cent'"),
        ({"paid": {"numbers": "1"}}, "Cash has no field 'numbers'"),
        ({"parent": {**WHOLE, "parent": {"ids": "a"}}}, "Order has no field 'ids'"),
    ],
)
def test_data_with_an_unknown_field_is_refused(data: dict[str, Any], why: str) -> None:
    with pytest.raises(SerdeError, match=f"^avro: {why}"):
        check_of(json.dumps(ORDER))({**WHOLE, **data})


@pytest.mark.parametrize("schema", ['"string"', '["null", "long"]', '{"type": "array", "items": "int"}'])
def test_data_of_a_schema_without_records_is_not_checked(schema: str) -> None:
    check_of(schema)({"a": 1})
    check_of(schema)("a")
