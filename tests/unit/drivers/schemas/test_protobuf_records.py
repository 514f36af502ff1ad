"""Values that a Protobuf message would lose are refused, and others are preserved."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from millstream.core.model.errors import SerdeError
from millstream.drivers.schemas.protobuf_records import from_message, to_message


def payment_class() -> Any:
    """Create a message class with a oneof, fields of 32 bits, and an optional field."""
    file = descriptor_pb2.FileDescriptorProto(name="payment.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Payment")
    message.oneof_decl.add(name="by")
    message.oneof_decl.add(name="_note")
    kind = descriptor_pb2.FieldDescriptorProto
    for number, (name, of, oneof) in enumerate(
        (
            ("card", kind.TYPE_STRING, 0),
            ("cents", kind.TYPE_INT32, 0),
            ("note", kind.TYPE_STRING, 1),
            ("rate", kind.TYPE_FLOAT, None),
            ("rates", kind.TYPE_FLOAT, None),
        ),
        1,
    ):
        field = message.field.add(name=name, number=number, type=of)
        field.label = kind.LABEL_REPEATED if name == "rates" else kind.LABEL_OPTIONAL
        field.proto3_optional = oneof == 1
        if oneof is not None:
            field.oneof_index = oneof
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))


PAYMENT = payment_class()


def test_values_for_two_fields_of_a_oneof_are_refused() -> None:
    for given in ({"card": "a", "cents": 5}, {"cents": 0, "card": ""}):
        with pytest.raises(
            SerdeError, match=r"Payment has values for '\w+' and '\w+', but only one .* \(oneof by\)"
        ):
            to_message(PAYMENT, given)
    decoded = from_message(to_message(PAYMENT, {"card": None, "cents": 0, "note": ""}))
    assert (decoded["card"], decoded["cents"], decoded["note"]) == (None, 0, "")


@pytest.mark.parametrize("given", [{"rate": 1e300}, {"rates": [1.0, -(10**39)]}])
def test_a_number_that_is_too_large_for_32_bits_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SerdeError, match=r"Payment\.rates? cannot be .*: "):
        to_message(PAYMENT, given)


def test_infinite_numbers_are_preserved() -> None:
    decoded = from_message(to_message(PAYMENT, {"rate": math.inf, "rates": [0.5, -math.inf]}))
    assert (decoded["rate"], decoded["rates"]) == (math.inf, [0.5, -math.inf])
