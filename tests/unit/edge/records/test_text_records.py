"""How bytes of records are shown."""

from __future__ import annotations

import struct
from typing import Any

import pytest

import millstream as ms
from millstream.edge.records import text_records
from millstream.edge.records.text_records import PeekOptions, peeked
from millstream.edge.settings.settings import Settings


class _FakeMessage:
    def __init__(self, value: bytes) -> None:
        self._value = value

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value

    def partition(self) -> int:
        return 0

    offset = partition

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def headers(self) -> None:
        return None


@pytest.mark.parametrize(
    ("data", "auto", "as_bytes"),
    [
        (ms.serdes.int64.serialize(7), 7, "\x00" * 7 + "\x07"),
        (ms.serdes.int64.serialize(-1), -1, "ff" * 8),
        (ms.serdes.int64.serialize(2**60), "1000000000000000", "\x10" + "\x00" * 7),
        (struct.pack(">d", 1.5), "3ff8000000000000", "3ff8000000000000"),
        (b"teaspoon", "teaspoon", "teaspoon"),
        ("größer".encode(), "größer", "größer"),
        (b"\x1b]0;owned\x07", "\x1b]0;owned\x07", "\x1b]0;owned\x07"),
        (b"", "", ""),
    ],
)
def test_bytes_are_shown_as_text_a_number_or_hexadecimal(
    monkeypatch: pytest.MonkeyPatch, data: bytes, auto: Any, as_bytes: str
) -> None:
    monkeypatch.setattr(text_records, "messages", lambda *_, **__: [_FakeMessage(data)])
    settings = Settings(bootstrap_servers="nowhere:1")
    for form, shown in (("auto", auto), ("bytes", as_bytes)):
        (record,) = peeked(PeekOptions("topic", value=form), settings)
        assert record.value == shown
