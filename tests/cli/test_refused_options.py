"""Options and arguments that the command line refuses, without a broker: one line, and an exit code that is not 0."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.edge.cli.commands import app


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["peek", "in", "--last", "1", "--beginning"], 1, "--beginning and --last exclude each other"),
        (["send", "in", "x", "--separator", ""], 1, "--separator is empty"),
        (["top", "shop", "--interval", "inf"], 2, "Invalid value for '--interval'"),
        (["record", "slice.jsonl", "in", "--partition", "-1"], 2, "Invalid value for '--partition'"),
        (["dlq", "list", "letters", "--offset", "-1"], 2, "Invalid value for '--offset'"),
    ],
)
def test_an_option_that_has_no_meaning_is_refused(
    arguments: list[str], code: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("MILLSTREAM_STATE_DIR", str(tmp_path))
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, why in result.stderr) == (code, True)
    assert list(tmp_path.iterdir()) == []
