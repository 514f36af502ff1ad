"""Options and arguments that the command line refuses without a broker, with an error and a non-zero exit code."""

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
        (["dlq", "list", "letters", "--group", ""], 1, "--group is empty"),
        (["status", "shop", "--state-dir", ""], 2, "Invalid value for '--state-dir': it is empty"),
        (["reset", "shop", "--checkpoint-location", "", "--yes"], 1, "'checkpoint_location' cannot be ''"),
        (["demo", "--master", "nonsense"], 2, "Input should be local[*], spark://host:7077, yarn"),
        (["doctor", "--master", ""], 2, "Input should be local[*], spark://host:7077, yarn"),
    ],
)
def test_an_invalid_option_is_refused_and_nothing_is_written(
    arguments: list[str], code: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("MILLSTREAM_STATE_DIR", str(tmp_path))
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, why in result.stderr) == (code, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"\xff\xfe", b"MILLSTREAM_STATE_DIR=a\0b"])
def test_an_env_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / ".env"
    file.write_bytes(content)
    result = CliRunner().invoke(app, ["--env-file", str(file), "status", "shop"])
    assert (result.exit_code, f"'{file}' cannot be read" in result.stderr.replace("\n", "")) == (2, True)
