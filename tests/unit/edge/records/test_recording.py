"""Files of recordings: an incomplete file is deleted, and a file of another program is kept."""

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


def test_a_failed_recording_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Any) -> Iterator[ConsumedRecord]:
        yield ROW
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "slice.jsonl"
    monkeypatch.setattr(recording, "_records", lambda *_: [])
    monkeypatch.setattr(recording, "merged", interrupted)
    with pytest.raises(SettingsError, match=r"slice\.jsonl' cannot be written: No space left on device"):
        recording.record(RecordedRange(["in"]), file, SETTINGS)
    assert not file.exists()


def test_a_file_that_another_program_creates_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slice.jsonl"

    def create_file_meanwhile(*_: Any) -> list[ConsumedRecord]:
        file.write_text("other")
        return [ROW]

    monkeypatch.setattr(recording, "_records", create_file_meanwhile)
    with pytest.raises(SettingsError, match="cannot be written: File exists"):
        recording.record(RecordedRange(["in"]), file, SETTINGS)
    assert file.read_text() == "other"
