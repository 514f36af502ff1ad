"""Reads and writes records of a topic as text, for the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from millstream.core.model import serdes
from millstream.core.model.errors import MillstreamError, SettingsError
from millstream.edge.records.topic_records import as_bytes, messages, write
from millstream.edge.settings.settings import Settings

FORMATS: Final = ("auto", "string", "bytes", "int16", "int32", "int64", "float32", "float64", "uuid", "json")
"""The names of formats. ``auto`` is text, for eight bytes that are not printable a number, or hexadecimal."""
_SMALL: Final = 1 << 52
"""Eight bytes of an integer below it are not those of a usual float."""


@dataclass(frozen=True)
class PeekOptions:
    """Which records to read.

    Attributes:
        last: The number of last records per partition; None for all.
        follow: Whether to wait for new records.
    """

    topic: str
    last: int | None = 10
    follow: bool = False
    key: str = "auto"
    value: str = "auto"


class PeekedRecord(NamedTuple):
    """A record for display: key, value and headers are decoded by their formats."""

    partition: int | None
    offset: int | None
    timestamp: int
    key: Any
    value: Any
    headers: list[tuple[str, Any]]


def peeked(options: PeekOptions, settings: Settings) -> Iterator[PeekedRecord]:
    """Yield records of a topic; commits no offsets."""
    _check(options.key, options.value)
    for message in messages(settings, options.topic, options.last, follow=options.follow):
        yield PeekedRecord(
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            _display_value(message.key(), options.key),
            _display_value(message.value(), options.value),
            [(header[0], _display_value(as_bytes(header[1]), "auto")) for header in message.headers() or ()],
        )


def _display_value(data: Any, form: str) -> Any:
    raw = as_bytes(data)
    if raw is None:
        return None
    if form in ("auto", "bytes"):
        return _guessed_value(raw, numbers=form == "auto")
    try:
        found = getattr(serdes, form).deserialize(raw)
    except Exception as error:  # other records may fit the format
        return f"<no {form}: {error}>"
    return found if isinstance(found, str | int | float | bool | list | dict | None) else str(found)


def _guessed_value(raw: bytes, *, numbers: bool) -> str | int:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    if numbers and len(raw) == 8 and not (text or "\0").isprintable():
        number = int.from_bytes(raw, signed=True)
        return number if -_SMALL <= number < _SMALL else raw.hex()
    return raw.hex() if text is None else text


def send_text(
    topic: str, records: Iterable[tuple[str | None, str | None]], forms: tuple[str, str], settings: Settings
) -> int:
    """Write records; return their number when all are acknowledged.

    Args:
        records: Keys and values as text; None is null.
        forms: Formats of keys and values.

    Raises:
        SettingsError: If a format does not exist, or a text does not fit it.
    """
    _check(*forms)
    return write(
        settings,
        topic,
        ((_parsed_bytes(key, forms[0]), _parsed_bytes(value, forms[1]), None, ()) for key, value in records),
    )


def _parsed_bytes(text: str | None, form: str) -> bytes | None:
    if text is None:
        return None
    try:
        if form in ("auto", "string", "bytes"):
            return text.encode()
        given = UUID(text) if form == "uuid" else json.loads(text)
        data: bytes | None = None if given is None else getattr(serdes, form).serialize(given)
    except (ValueError, OverflowError, RecursionError, MillstreamError) as error:
        raise SettingsError(
            f"{text!r} cannot be written as {form}: {error}; the records before it were sent. Correct it, then send it and those after it"
        ) from None
    return data


def _check(*forms: str) -> None:
    for form in forms:
        if form not in FORMATS:
            raise SettingsError(f"there is no format {form!r}; the formats are {', '.join(FORMATS)}")
