"""Records of several Protobuf messages of one file."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import millstream as ms
from millstream.core.model.errors import SerdeError


def messages(*names: str, package: str = "shop") -> dict[str, Any]:
    """Make the messages of a file, each with a field ``text``; ``Order.Line`` is a message in ``Order``."""
    file = descriptor_pb2.FileDescriptorProto(name="events.proto", package=package, syntax="proto3")
    made: dict[str, Any] = {}
    for name in names:
        outer, _, inner = name.rpartition(".")
        message = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        field = message.field.add(name="text", number=1)
        field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL
        made[name] = message
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    prefix = f"{package}." if package else ""
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{prefix}{name}")) for name in names
    }


@pytest.fixture
def registry() -> str:
    return f"mock://{secrets.token_hex(4)}"


@pytest.mark.parametrize("package", ["shop", ""])
@pytest.mark.parametrize("of", [None, dict])
def test_another_message_of_the_file_is_refused(registry: str, of: Any, package: str) -> None:
    file = messages("Paid", "Order", "Order.Line", "Order.Note", package=package)
    serdes = {name: ms.serdes.protobuf(message, of, registry=registry) for name, message in file.items()}
    prefix = f"{package}." if package else ""
    for written, message in file.items():
        data = serdes[written].serialize(message(text="tea") if of is None else {"text": "tea"})
        for read, serde in serdes.items():
            if read == written:
                found = serde.deserialize(data)
                assert (found.text if of is None else found["text"]) == "tea"
                continue
            with pytest.raises(
                SerdeError,
                match=f"the record is a {prefix}{written}, and the serde reads {prefix}{read}, another",
            ):
                serde.deserialize(data)


def test_a_message_that_has_moved_in_its_file_is_read(registry: str) -> None:
    before, after = messages("Order", "Paid"), messages("Paid", "New", "Order")
    data = ms.serdes.protobuf(before["Order"], registry=registry).serialize(before["Order"](text="tea"))
    assert ms.serdes.protobuf(after["Order"], registry=registry).deserialize(data).text == "tea"


def test_a_message_under_a_former_name_is_read(registry: str) -> None:
    before, after = messages("Order"), messages("Purchase")
    data = ms.serdes.protobuf(before["Order"], registry=registry).serialize(before["Order"](text="tea"))
    assert ms.serdes.protobuf(after["Purchase"], registry=registry).deserialize(data).text == "tea"
