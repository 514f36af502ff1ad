"""Which message of a file a record is. A topic may have records of several messages of one file.

Protobuf reads the bytes of any message as any other one, with wrong values. The wire format therefore has, after the id of the schema, the
position of the message in its file: the length of a path, and the path, as variable-length integers; only a zero for the first message.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import Message

from millstream.core.model.errors import SerdeError


class MessageTypes:
    """Refuses records of other messages than the one that a serde reads, of the same file.

    A message of a file without the serde's message may be the same one under a former name, so it is read.
    """

    def __init__(self, message: type[Message], client: SchemaRegistryClient) -> None:
        self._name = message.DESCRIPTOR.full_name
        self._client = client
        self._others: dict[tuple[int, tuple[int, ...]], str | None] = {}

    def check(self, data: bytes) -> None:
        """Check bytes that could be read.

        Raises:
            SerdeError: If they are another message.
        """
        if data[:1] != b"\0":
            return  # the id of the schema is in a header
        written = int.from_bytes(data[1:5]), _path(data)
        if written not in self._others:
            self._others[written] = self._other(*written)
        other = self._others[written]
        if other is not None:
            raise SerdeError(
                f"protobuf: the record is a {other}, and the serde reads {self._name}, another message of the same file"
            )

    def _other(self, schema: int, path: Sequence[int]) -> str | None:
        """Return the name of the message at a path, if the file also has the serde's message; None if that is it, or unknown."""
        text = self._client.get_schema(schema, None, "serialized").schema_str
        file = FileDescriptorProto.FromString(base64.b64decode(text or ""))
        names = dict(_names(file.message_type, file.package))
        found = names.get(tuple(path))
        return found if found != self._name and self._name in names.values() else None


def _names(
    messages: Sequence[DescriptorProto], within: str, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], str]]:
    for number, message in enumerate(messages):
        name = f"{within}.{message.name}" if within else message.name
        yield (*path, number), name
        yield from _names(message.nested_type, name, (*path, number))


def _path(data: bytes) -> tuple[int, ...]:
    numbers = _numbers(data)
    count = next(numbers)
    return tuple(next(numbers) for _ in range(count)) if count else (0,)


def _numbers(data: bytes) -> Iterator[int]:
    """Yield the variable-length integers after the id of the schema."""
    position = 5
    while True:
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield (value >> 1) ^ -(value & 1)
