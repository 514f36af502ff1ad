"""How the options of ``millstream reset`` are read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import SettingsError
from millstream.edge.cli.reset_command import target_of

NONE: dict[str, Any] = {
    "to_earliest": False,
    "to_latest": False,
    "to_offset": None,
    "to_datetime": None,
    "by_duration": None,
    "shift_by": None,
    "from_file": None,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT30M", 1_800_000), ("P1W", 604_800_000), ("P2DT1H1M1.5S", 176_461_500), ("P1Y", 31_536_000_000)],
)
def test_durations(text: str, expected: int) -> None:
    target = target_of(**{**NONE, "by_duration": text})
    assert target.kind == "time"
    assert 0 <= time.time() * 1000 - expected - target.value < 60_000  # noqa: TID251 - the command's own clock


@pytest.mark.parametrize("text", ["", "P", "PT", "30m", "30", "-PT1S"])
def test_no_durations(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a duration"):
        target_of(**{**NONE, "by_duration": text})


@pytest.mark.parametrize("content", ["topic,0,5\n".encode("utf-16"), b"caf\xe9,0,5\n"])
def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "offsets.csv"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"offsets\.csv' cannot be read: .*utf-8"):
        target_of(**{**NONE, "from_file": file})
