"""The file of a recording."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import SettingsError
from millstream.edge.records import recording
from millstream.edge.records.recording import RecordedRange
from millstream.edge.settings.settings import Settings
from millstream.testing.kafka import ConsumedRecord

SETTINGS = Settings(bootstrap_servers="nowhere:1")
ROW = ConsumedRecord("in", 0, 0, 5, b"k", b"v")


def test_a_recording_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Any) -> Iterator[ConsumedRecord]:
        yield ROW
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "slice.jsonl"
    monkeypatch.setattr(recording, "_records", lambda *_: [])
    monkeypatch.setattr(recording, "merged", interrupted)
    with pytest.raises(SettingsError, match=r"slice\.jsonl' cannot be written: No space left on device"):
        recording.record(RecordedRange(["in"]), file, SETTINGS)
    assert not file.exists()


def test_the_file_of_another_program_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "slice.jsonl"

    def meanwhile(*_: Any) -> list[ConsumedRecord]:
        file.write_text("other")
        return [ROW]

    monkeypatch.setattr(recording, "_records", meanwhile)
    with pytest.raises(SettingsError, match="cannot be written: File exists"):
        recording.record(RecordedRange(["in"]), file, SETTINGS)
    assert file.read_text() == "other"
