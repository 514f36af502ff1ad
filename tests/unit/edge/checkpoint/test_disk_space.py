"""A full disk below the directory of an application: errors name it, nothing is lost, and work continues when there is space."""

from __future__ import annotations

from pathlib import Path

from unit.small_disk import run_on_small_disk

_LEASE = """
import pathlib, sys
from millstream.core.model.errors import SettingsError
from millstream.edge.checkpoint.state_lease import Lease
from millstream.testing.crash.faults import Space

disk = pathlib.Path(sys.argv[1])
lease = Lease.take(disk / "old", "old", "running")
lease.begin("5f3a")
lease.release()
Space(disk).fill()
lease = Lease.take(disk / "old", "old", "running")
assert lease.begun_checkpoint == "5f3a"
lease.release()
try:
    Lease.take(disk / "new", "new", "running")
except SettingsError as error:
    print(error)
Space(disk).release()
Lease.take(disk / "new", "new", "running").release()
"""

_CONTROL_FILE = """
import pathlib, sys
from millstream.core.model.errors import SettingsError
from millstream.drivers.spark.control import ControlAddress
from millstream.edge.control.control_file import write_control_file
from millstream.testing.crash.faults import Space

disk = pathlib.Path(sys.argv[1])
Space(disk).fill()
try:
    write_control_file(disk, ControlAddress("/socket", b"key"))
except SettingsError as error:
    print(error)
Space(disk).release()
write_control_file(disk, ControlAddress("/socket", b"key"))
"""


_LOG = """
import logging, pathlib, sys
from millstream.core.model.errors import SettingsError
from millstream.edge.status.log_output import attach
from millstream.testing.crash.faults import Space

disk = pathlib.Path(sys.argv[1])
attach("lines", disk / "millstream.log")
Space(disk).fill()
for number in range(2_000):
    logging.getLogger("millstream.application").info("a line for the file, %d", number)
logging.getLogger("millstream.application").error("the disk is full")
Space(disk).release()
logging.getLogger("millstream.application").info("room again")
assert (disk / "millstream.log").read_text().rstrip().endswith("room again")
"""


def test_the_error_about_a_full_disk_names_the_directory_of_the_lease(tmp_path: Path) -> None:
    output = run_on_small_disk(tmp_path, _LEASE)
    assert f"{tmp_path}/new" in output
    assert "No space left on device; its disk has 0.0 of 8.0 MiB free" in output
    assert "Free some space" in output


def test_the_error_about_a_full_disk_names_the_control_file(tmp_path: Path) -> None:
    output = run_on_small_disk(tmp_path, _CONTROL_FILE)
    assert f"{tmp_path}/control.json" in output
    assert "No space left on device; its disk has 0.0 of 8.0 MiB free" in output
    assert "Free some space" in output


def test_the_log_file_continues_when_the_disk_has_space_again(tmp_path: Path) -> None:
    output = run_on_small_disk(tmp_path, f"import sys; sys.stderr = sys.stdout{_LOG}")
    assert [line[9:] for line in output.splitlines()] == ["the disk is full"]
