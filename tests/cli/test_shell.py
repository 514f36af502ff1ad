"""``millstream shell``: a topology in a lab, with a prompt of Python or IPython."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.edge.cli.commands import app

ROOT = Path(__file__).parents[2]
TYPED = """\
lab.send("lines", "to be or not to be")
lab.wait()
print("counts:", dict(lab.entries("counts")))
print("names:", lab, ms.__name__, topology is lab._topology)
"""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["examples.nothing:topology"], "examples.nothing"),
        (["examples.wordcount:nothing"], "nothing"),
        (
            ["examples.wordcount:topology", "--set", "changelog"],
            "'changelog' is not a setting; write name=value",
        ),
        (["examples.wordcount:topology", "--set", "unknown=1", "--bootstrap-servers", "nobody:1"], "unknown"),
    ],
)
def test_an_unknown_topology_or_setting_is_refused(
    arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["shell", *arguments])
    assert done.exit_code == 1
    assert problem in done.output


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_typed_statements_run_with_a_broker_and_spark(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "shell", "examples.wordcount:topology", "--id", "tried"],
        cwd=ROOT,
        env={**os.environ, "IPYTHONDIR": str(tmp_path), "MILLSTREAM_STATE_DIR": str(tmp_path)},
        input=TYPED,
        capture_output=True,
        text=True,
        timeout=500,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "Topics: counts, lines. Stores: counts." in output
    assert "counts: {'be': 2, 'not': 1, 'or': 1, 'to': 2}" in output
    assert "names: <Lab 'tried': running> millstream True" in output
    assert "tried: stopped after" in output


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")
def test_without_ipython_the_shell_is_a_python_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MILLSTREAM_STATE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "IPython", None)
    done = CliRunner().invoke(app, ["shell", "examples.wordcount:topology", "--id", "tried"], input=TYPED)
    assert done.exit_code == 0, done.output
    assert ">>> counts: {'be': 2, 'not': 1, 'or': 1, 'to': 2}" in done.output
    assert "names: <Lab 'tried': running> millstream True" in done.output
