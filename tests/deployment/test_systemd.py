"""The systemd unit of the examples: systemd accepts it, its settings are valid, and a stop signals only the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.drivers.cache import cache_directory
from millstream.drivers.private import _LONGEST
from millstream.edge.application.running_application import _STOP_WAIT_S
from millstream.edge.settings.settings import Settings

UNIT = Path(__file__).parents[2] / "examples/systemd/word-count.service"


def values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="the machine has no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    python = values("ExecStart")[0].partition(" ")[0]
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(python, sys.executable))  # it must exist
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


def test_a_stop_signals_only_the_program_and_gives_it_time_to_end() -> None:
    assert values("KillMode") == ["mixed"]
    (wait,) = values("TimeoutStopSec")
    assert int(wait.removesuffix("min")) * 60 > _STOP_WAIT_S


def test_the_settings_are_valid_and_use_the_directories_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = dict(value.split("=", 1) for value in values("Environment"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    state, temporary = (f"/var/lib/{name}" for name in values("StateDirectory")[0].split())
    assert (
        str(Settings(bootstrap_servers="localhost:9092").state_dir) == state == values("WorkingDirectory")[0]
    )
    assert cache_directory() == Path("/var/cache") / values("CacheDirectory")[0]
    assert environment["TMPDIR"] == temporary
    assert len(os.fsencode(temporary)) <= _LONGEST, "sockets would be in /tmp"
