"""JSON of one type: pydantic models, and types that are refused when the serde is created."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr, field_serializer, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pyspark import cloudpickle

import millstream as ms
from millstream.core.model.errors import SerdeError, SettingsError
from millstream.drivers.spark.outline import from_outline, outline

PROGRAM = """
from dataclasses import dataclass

from pyspark import cloudpickle

import millstream as ms


@dataclass
class Line:
    cents: int


@dataclass
class Order:
    lines: list[Line]


orders = ms.serdes.{form}(Order, registry="mock://shop")
for _ in range(2):
    assert orders.deserialize(orders.serialize(Order([Line(250)]))) == Order([Line(250)])
    cloudpickle.dumps((orders, lambda: Order([])))
"""


class Size(Enum):
    SMALL = "small"


class Customer(BaseModel):
    name: str
    size: Size = Size.SMALL
    friends: list[Customer] = []


class Shipment(BaseModel):
    order_id: str = Field(alias="orderId")


@dataclass
class Tree:
    children: list[Tree]
    size: Size | None = None


@dataclass
class Holder:
    customers: dict[str, list[Customer]]


@pytest.mark.parametrize(
    "value",
    [
        Customer(name="Zoë", friends=[Customer(name="Bob")]),
        Tree([Tree([], Size.SMALL)]),
        Shipment.model_validate({"orderId": "a"}),
    ],
)
def test_objects_round_trip(value: Any) -> None:
    serde = pickle.loads(pickle.dumps(ms.serdes.typed(type(value))))
    assert serde.name == f"json:{type(value).__name__}"
    assert serde.deserialize(serde.serialize(value)) == value


def test_a_model_is_read_by_its_aliases_and_by_the_names_of_its_fields() -> None:
    serde = ms.serdes.typed(Shipment)
    assert serde.deserialize(b'{"orderId":"a"}') == serde.deserialize(b'{"order_id":"a"}')


def test_classes_defined_in_the_program_are_pickled_with_a_serde() -> None:
    line = make_dataclass("Line", [("cents", int)], namespace={"__module__": "__main__"})
    order = make_dataclass("Order", [("lines", list[line])], namespace={"__module__": "__main__"})  # type: ignore[valid-type]  # made at run time
    value = order([line(250)])
    serde: ms.Serde[Any] = ms.serdes.typed(order)
    cloudpickle.dumps(ms.serdes.json_schema(order, registry="http://localhost"))
    for _ in range(2):
        assert serde.deserialize(serde.serialize(value)) == value
        serde, order, value = cloudpickle.loads(cloudpickle.dumps((serde, order, value)))


@pytest.mark.parametrize("form", ["avro", "json_schema"])
def test_classes_defined_in_the_program_are_pickled_after_records_were_read(
    form: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(form=form))
    subprocess.run([sys.executable, str(program)], check=True)


@pytest.mark.parametrize("kind", [Customer, Tree])
def test_the_outline_of_a_topology_omits_the_type(kind: Any) -> None:
    assert from_outline(outline(ms.serdes.typed(kind))).name == f"json:{kind.__name__}"


@pytest.mark.parametrize("data", [b"{", b'{"name":1}', b'"\xff"'])
def test_bytes_that_do_not_fit_a_model_are_an_error(data: bytes) -> None:
    with pytest.raises(SerdeError, match="typed JSON: "):
        ms.serdes.typed(Customer).deserialize(data)


@pydantic_dataclass
class Refund:
    cents: int = Field(gt=0)
    at: datetime | None = None
    reason: str = Field("", alias="why")

    @field_validator("reason")
    @classmethod
    def _short(cls, reason: str) -> str:
        return reason.strip()


def test_a_pydantic_dataclass_is_validated() -> None:
    refunds = pickle.loads(pickle.dumps(ms.serdes.typed(Refund)))
    refund = Refund(cents=5, at=datetime(2026, 1, 2, tzinfo=UTC), why="late")
    assert refunds.deserialize(refunds.serialize(refund)) == refund
    assert refunds.deserialize(b'{"cents":"7","why":" late "}') == Refund(cents=7, why="late")
    assert refunds.parse('{"cents":7,"reason":"late"}') == Refund(cents=7, why="late")
    with pytest.raises(SerdeError, match=r"typed JSON: 1 validation error for Refund"):
        refunds.deserialize(b'{"cents":-5}')
    with pytest.raises(SerdeError, match="typed JSON: expected Refund, got dict"):
        refunds.serialize({"cents": 5})


class Login(BaseModel):
    name: str
    password: SecretStr | None = None


class RevealedLogin(Login):
    @field_serializer("password")
    def _text(self, password: SecretStr | None) -> str | None:
        return None if password is None else password.get_secret_value()


@pytest.mark.parametrize("form", ["typed", "json_schema"])
def test_a_secret_is_not_written_as_asterisks(form: str) -> None:
    options = {} if form == "typed" else {"registry": f"mock://{form}"}
    hidden, revealed = (getattr(ms.serdes, form)(kind, **options) for kind in (Login, RevealedLogin))
    with pytest.raises(
        SerdeError, match=r"pydantic writes a secret as asterisks.*field_serializer"
    ) as raised:
        hidden.serialize(Login(name="Ada", password=SecretStr("hunter2")))
    assert "hunter2" not in str(raised.value)
    assert hidden.deserialize(hidden.serialize(Login(name="Ada"))).password is None
    login = RevealedLogin(name="Ada", password=SecretStr("hunter2"))
    assert revealed.deserialize(revealed.serialize(login)) == login


def test_an_object_of_another_type_is_an_error() -> None:
    with pytest.raises(SerdeError, match="expected Customer, got dict"):
        ms.serdes.typed(Customer).serialize({"name": "Ada"})  # type: ignore[arg-type]
    wrong: Any
    for wrong in ({"children": []}, 5, Size.SMALL):
        with pytest.raises(SerdeError, match=f"typed JSON: expected Tree, got {type(wrong).__name__}"):
            ms.serdes.typed(Tree).serialize(wrong)


@pytest.mark.parametrize(
    ("kind", "why"), [(Holder, "Customer"), (complex, "complex"), (dict[Size, Any] | Tree, "")]
)
def test_a_type_that_msgspec_does_not_support_is_refused(kind: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=rf"serdes\.typed\(.*\): .*{why}"):
        ms.serdes.typed(kind)


@dataclass
class Measured:
    value: float | None
    more: list[float] = field(default_factory=list)


class MeasuredModel(BaseModel):
    value: float | None
    more: list[float] = []


class WithNan(MeasuredModel):
    """Writes and reads NaN as text."""

    model_config = {"ser_json_inf_nan": "strings"}


@pytest.mark.parametrize("kind", [Measured, MeasuredModel])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_instead_of_written_as_null(kind: Any, number: float) -> None:
    serde = ms.serdes.typed(kind)
    for value in (kind(value=number), kind(value=None, more=[1.0, number])):
        with pytest.raises(SerdeError, match=f"typed JSON: {number} is not JSON"):
            serde.serialize(value)
    for value in (kind(value=None, more=[1.0]), kind(value=0.5)):
        assert serde.deserialize(serde.serialize(value)) == value


def test_a_model_that_writes_nan_and_infinity_as_text_may_have_them() -> None:
    serde = ms.serdes.typed(WithNan)
    assert serde.serialize(WithNan(value=float("inf"))) == b'{"value":"Infinity","more":[]}'


def test_a_single_number_must_be_finite() -> None:
    assert ms.serdes.typed(float).serialize(1.5) == b"1.5"
    with pytest.raises(SerdeError, match="nan is not JSON"):
        ms.serdes.typed(float).serialize(float("nan"))


def test_types_with_arguments_have_different_names() -> None:
    names = [ms.serdes.typed(kind).name for kind in (list[int], list[str], dict[str, int], int)]
    assert names == ["json:list[int]", "json:list[str]", "json:dict[str, int]", "json:int"]
