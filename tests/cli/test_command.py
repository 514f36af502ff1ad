"""The command as a program: exit codes, output that cannot be written, and shell completion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from millstream.edge.cli.commands import app


def test_python_m_millstream_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "millstream", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"millstream {version('millstream')}\n", "")

    usage = subprocess.run(
        [sys.executable, "-m", "millstream", "--help"], capture_output=True, text=True
    ).stdout
    assert "python -m millstream [OPTIONS] COMMAND" in usage


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["describe", "examples.wordcount:topology"]]
)
def test_a_full_disk_ends_the_command_with_a_one_line_error(arguments: list[str], buffered: bool) -> None:
    with Path("/dev/full").open("w") as full:
        done = _with_output(full.fileno(), arguments, buffered=buffered)
    assert done.stderr == "millstream: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
def test_the_exit_code_is_1_even_if_no_message_can_be_written(buffered: bool) -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (["--version"], ["describe", "examples.nothing:topology"]):
            done = _with_output(full.fileno(), arguments, buffered=buffered, stderr=full.fileno())
            assert done.returncode == 1


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", [["--version"], ["describe", "examples.wordcount:topology"]])
def test_a_closed_pipe_ends_the_command_quietly(arguments: list[str], buffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = _with_output(writing, arguments, buffered=buffered)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def _with_output(
    stdout: int, arguments: list[str], *, buffered: bool, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "-m", "millstream", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, env=environment)


def _completions(words: str) -> list[str]:
    """Return the completions that bash gets for the last of ``words``."""
    variables = {
        "_MILLSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = "import sys; sys.argv[0] = 'millstream'; from millstream.edge.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=True,
    )
    return done.stdout.split()


def test_a_shell_completes_commands_and_options() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert set(_completions("millstream ")) == set(commands)
    assert _completions("millstream do") == ["doctor"]
    assert set(_completions("millstream demo --")) == {"--lines", "--keep", "--no-keep", "--master", "--help"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_accepts_the_printed_completion_script(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'millstream'; from millstream.edge.cli import main; main()",
    ]
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run(
        [*command, "--show-completion", "bash"], capture_output=True, text=True, env=environment, check=True
    )
    script = tmp_path / "completion.bash"
    script.write_text(f"{shown.stdout}\ncomplete -p millstream\n")
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True)
    assert "millstream" in done.stdout


def test_an_env_file_sets_only_variables_that_are_not_set(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("MILLSTREAM_KAFKA__GROUP_ID=mine\n")
    command = [sys.executable, "-m", "millstream", "--env-file", str(file), "status", "nobody"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "'group.id' cannot be set here" in refused.stderr

    file.write_text("MILLSTREAM_STATE_DIR=/from/the/file\n")
    refused = subprocess.run(command, capture_output=True, text=True)
    assert "there is no '/from/the/file/nobody/control.json'" in refused.stderr
    set_already = {**os.environ, "MILLSTREAM_STATE_DIR": str(tmp_path)}
    refused = subprocess.run(command, capture_output=True, text=True, env=set_already)
    assert f"there is no '{tmp_path}/nobody/control.json'" in refused.stderr


def test_text_that_the_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "copy_of.py").write_text(
        "import millstream as ms\nbuilder = ms.StreamsBuilder()\n"
        "builder.stream('in', value=ms.serdes.string).to('out', value=ms.serdes.string)\n"
    )
    slice_file = tmp_path / "slice.jsonl"
    record = {"topic": "in", "partition": 0, "timestamp": 5, "key": None, "value": "größe \N{KEY}"}
    slice_file.write_text(json.dumps(record))
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "replay", str(slice_file), "copy_of:builder"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        encoding="latin-1",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "größe \\U0001f511" in done.stdout
