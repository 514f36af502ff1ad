"""How ``millstream send`` reads lines from standard input."""

from __future__ import annotations

import io
import sys

import pytest

from millstream.core.model.errors import SettingsError
from millstream.edge.cli.record_commands import _lines


def test_lines_that_are_not_utf_8_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\n"), encoding="utf-8"))
    assert list(_lines()) == ["a", ""]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    with pytest.raises(
        SettingsError, match=r"standard input is not utf-8: .*; the records before it were sent"
    ):
        list(_lines())


def test_lines_may_have_windows_line_endings(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"a\r\n\r\nb\rc\r\nd"), encoding="utf-8", newline="\n")
    monkeypatch.setattr(sys, "stdin", text)
    assert list(_lines()) == ["a", "", "b\rc", "d"]
