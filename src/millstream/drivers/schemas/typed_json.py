"""JSON of one Python type, written and read by msgspec."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.model.errors import SerdeError
from millstream.core.model.serdes import Serde, of


class TypedJson:
    """JSON of a type that msgspec supports. Picklable."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._encoder = msgspec.json.Encoder()

    def __reduce__(self) -> tuple[type[TypedJson], tuple[Any]]:
        return TypedJson, (self._kind,)

    def write(self, value: Any) -> bytes:
        """Write an object.

        Raises:
            SerdeError: If msgspec cannot write it.
        """
        try:
            return self._encoder.encode(value)
        except (TypeError, ValueError) as error:
            raise SerdeError(f"typed JSON: {error}") from None

    def read(self, data: bytes) -> Any:
        """Read an object.

        Raises:
            SerdeError: If the bytes are not JSON of this type.
        """
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SerdeError(f"typed JSON: {error}") from None


def typed_json(kind: Any, name: str | None) -> Serde[Any]:
    made = TypedJson(kind)
    return of(made.write, made.read, name=name or f"json:{getattr(kind, '__name__', kind)}")
