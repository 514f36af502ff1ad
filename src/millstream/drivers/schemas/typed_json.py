"""JSON of one Python type, written and read by msgspec or, for its models, by pydantic.

Both write NaN and infinite numbers as null, which a reader refuses or takes for None. So they are refused here, as by ``serdes.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, get_origin

import msgspec

from millstream.core.model.errors import SerdeError, SettingsError
from millstream.core.model.serdes import Serde, of
from millstream.drivers.schemas.plain_data import check_finite
from millstream.drivers.schemas.readable_types import (
    check_revealed,
    drop_caches,
    has_secrets,
    is_pydantic,
    is_pydantic_dataclass,
    parts_of,
    unsupported,
)
from millstream.drivers.schemas.record_types import by_name_or_alias, is_record

_NULL: Final = b"null"
_INSTEAD: Final = "Use types that it supports, or write a serde with serdes.of(...)"


class TypedJson:
    """JSON of a type that msgspec supports. Picklable, also where the planner leaves out the type (``drivers/spark/outline.py``)."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._encoder = msgspec.json.Encoder()

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        decoder = msgspec.json.Decoder(self._kind)
        drop_caches(self._kind)
        return decoder

    @cached_property
    def _may_be_infinite(self) -> bool:
        found = any(
            isinstance(part, msgspec.inspect.FloatType | msgspec.inspect.AnyType)
            for part in parts_of(self._kind)
        )
        drop_caches(self._kind)
        return found

    def __reduce__(self) -> tuple[type[TypedJson], tuple[Any]]:
        return TypedJson, (self._kind,)

    @cached_property
    def _record(self) -> Any:
        """The type that every object must have, as far as it is known without reading the object again."""
        return self._kind if is_record(self._kind) else object

    def write(self, value: Any) -> bytes:
        if not isinstance(value, self._record):
            raise SerdeError(f"typed JSON: expected {self._record.__name__}, got {type(value).__name__}")
        try:
            data = self._encoder.encode(value)
            if _NULL in data and self._may_be_infinite:
                check_finite(msgspec.to_builtins(value))
            return data
        except (TypeError, ValueError) as error:
            raise SerdeError(f"typed JSON: {error}") from None

    def read(self, data: bytes) -> Any:
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SerdeError(f"typed JSON: {error}") from None

    def parse(self, text: str) -> Any:
        return self.read(text.encode())


class PydanticJson:
    """JSON of a pydantic model. Picklable."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @cached_property
    def _has_secrets(self) -> bool:
        return has_secrets(self._model.model_json_schema)

    @cached_property
    def _read(self) -> Callable[[bytes], Any]:
        return by_name_or_alias(self._model.model_validate_json)

    def __reduce__(self) -> tuple[type[PydanticJson], tuple[Any]]:
        return type(self), (self._model,)

    def _dumped(self, value: Any) -> bytes:
        data: str = value.model_dump_json(round_trip=True)
        return data.encode()

    def _plain(self, value: Any) -> Any:
        return value.model_dump(round_trip=True)

    def write(self, value: Any) -> bytes:
        if not isinstance(value, self._model):
            raise SerdeError(f"typed JSON: expected {self._model.__name__}, got {type(value).__name__}")
        try:
            data = self._dumped(value)
            if _NULL in data:
                check_finite(self._plain(value))
            if self._has_secrets:
                check_revealed(data)
            return data
        except (TypeError, ValueError) as error:
            raise SerdeError(f"typed JSON: {error}") from None

    def read(self, data: bytes) -> Any:
        try:
            return self._read(data)
        except ValueError as error:
            raise SerdeError(f"typed JSON: {error}") from None

    def parse(self, text: str) -> Any:
        return self.read(text.encode())


class PydanticDataclassJson(PydanticJson):
    """JSON of a pydantic dataclass, whose validation msgspec would leave out. Picklable."""

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(self._model)

    @cached_property
    def _has_secrets(self) -> bool:
        return has_secrets(self._adapter.json_schema)

    @cached_property
    def _read(self) -> Callable[[bytes], Any]:
        return by_name_or_alias(self._adapter.validate_json)

    def _dumped(self, value: Any) -> bytes:
        data: bytes = self._adapter.dump_json(value, round_trip=True)
        return data

    def _plain(self, value: Any) -> Any:
        return self._adapter.dump_python(value, round_trip=True)


def format_of(kind: Any) -> TypedJson | PydanticJson:
    if is_pydantic_dataclass(kind):
        return PydanticDataclassJson(kind)
    return PydanticJson(kind) if is_pydantic(kind) else TypedJson(kind)


def typed_json(kind: Any, name: str | None) -> Serde[Any]:
    made = format_of(kind if is_pydantic(kind) or is_pydantic_dataclass(kind) else _supported(kind))
    return of(made.write, made.read, name=name or f"json:{_name_of(kind)}", parse=made.parse)


def _name_of(kind: Any) -> str:
    """Return the name of a type. That of ``list[int]`` is not only ``list``: a store remembers what its rows are."""
    return str(kind) if get_origin(kind) is not None else getattr(kind, "__name__", str(kind))


def _supported(kind: Any) -> Any:
    why = unsupported(kind)
    if why is not None:
        raise SettingsError(f"serdes.typed({kind!r}): {why}. {_INSTEAD}")
    return kind
