"""Log files of standbys: each running process has its own, and a later process reuses one of an ended process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from millstream.core.model.errors import SettingsError
from millstream.edge.status.standby_log import standby_log

_DRIVER = """
import sys
from pathlib import Path
from millstream.edge.status.standby_log import standby_log

print(standby_log(Path(sys.argv[1])).name, flush=True)
sys.stdin.read()
"""


class Driver:
    """Another process, which has a log file until it is killed."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-c", _DRIVER, str(home)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.log = self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_each_running_process_has_its_own_log_and_logs_of_ended_processes_are_reused(
    tmp_path: Path, ending: ExitStack
) -> None:
    def start_driver() -> Driver:
        driver = Driver(tmp_path / "app")
        ending.callback(driver.kill)
        return driver

    first, second = start_driver(), start_driver()
    assert [first.log, second.log] == ["millstream-standby.log", "millstream-standby-2.log"]
    first.kill()
    assert start_driver().log == "millstream-standby.log"
    assert start_driver().log == "millstream-standby-3.log"


def test_a_process_has_one_log_per_directory(tmp_path: Path) -> None:
    assert standby_log(tmp_path / "a") == standby_log(tmp_path / "a") == tmp_path / "a/millstream-standby.log"
    assert standby_log(tmp_path / "b") == tmp_path / "b/millstream-standby.log"


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        standby_log(tmp_path / "file" / "app")
