"""The settings file of a test."""

from __future__ import annotations

from pathlib import Path

import pytest


def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Write a settings file, and name it in the environment."""
    path = tmp_path / "millstream.toml"
    path.write_text(text)
    monkeypatch.setenv("MILLSTREAM_CONFIG", str(path))
