"""The lease: only one application at a time works on a state directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.core.model.errors import ApplicationRunningError, SettingsError
from millstream.edge.checkpoint.state_lease import Lease
from unit.forks import forked_child


def test_a_lease_excludes_a_second_one_until_it_is_released(tmp_path: Path) -> None:
    home = tmp_path / "app"
    lease = Lease.take(home, "app", "running")
    with pytest.raises(ApplicationRunningError) as caught:
        Lease.take(home, "app", "resetting")
    message = caught.value.message
    assert "'app' is in use" in message
    assert "(running)" in message
    assert str(home / "lock") in message
    lease.release()
    lease.release()
    Lease.take(home, "app", "resetting").release()


def test_a_killed_process_releases_its_lease(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from millstream.edge.checkpoint.state_lease import Lease\n"
        f"held = Lease.take(pathlib.Path({str(tmp_path)!r}), 'app', 'running')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ApplicationRunningError, match=rf"process {other.pid} on "):
            Lease.take(tmp_path, "app", "running")
        other.kill()
    Lease.take(tmp_path, "app", "running").release()


def test_a_child_of_a_killed_process_does_not_hold_the_lease(tmp_path: Path) -> None:
    """A process pool of the user's program outlived it, and no start was possible until the pool ended."""
    program = (
        "import multiprocessing, os, pathlib, signal; from millstream.edge.checkpoint.state_lease import Lease\n"
        f"held = Lease.take(pathlib.Path({str(tmp_path)!r}), 'app', 'running')\n"
        "def work(): print(os.getpid(), flush=True); signal.pause()\n"
        "child = multiprocessing.get_context('fork').Process(target=work); child.start(); child.join()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        other.kill()
        other.wait()
        try:
            os.kill(child, 0)  # it is still alive
            Lease.take(tmp_path, "app", "running").release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_lease_can_be_taken_again_while_a_child_of_the_process_runs(tmp_path: Path) -> None:
    lease = Lease.take(tmp_path, "app", "running")
    with forked_child():
        with pytest.raises(ApplicationRunningError):
            Lease.take(tmp_path, "app", "running")
        lease.release()
        Lease.take(tmp_path, "app", "running").release()


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"cannot be written: Not a directory. Set state_dir"):
        Lease.take(tmp_path / "file" / "app", "app", "running")


def test_a_lease_remembers_the_checkpoint_that_was_begun(tmp_path: Path) -> None:
    lease = Lease.take(tmp_path, "app", "running")
    assert lease.begun_checkpoint == ""
    lease.begin("5f3a")
    lease.release()
    for _ in range(2):
        lease = Lease.take(tmp_path, "app", "running")
        assert lease.begun_checkpoint == "5f3a"
        lease.release()


def test_a_truncated_file_of_a_lease_remembers_no_checkpoint(tmp_path: Path) -> None:
    Lease.take(tmp_path, "app", "running").release()
    (tmp_path / "lock").write_text('{"begun": "5f')
    assert Lease.take(tmp_path, "app", "running").begun_checkpoint == ""


@pytest.mark.parametrize("replaced", ["directory", "record"])
def test_a_lease_does_not_overwrite_the_file_of_another_driver(tmp_path: Path, replaced: str) -> None:
    """The directory was deleted and a second driver was started, or the file system has no locks. The first one did not notice."""
    home = tmp_path / "app"
    lease = Lease.take(home, "app", "running")
    lease.begin("5f3a")
    if replaced == "directory":
        shutil.rmtree(home)
        other = Lease.take(home, "app", "resetting")
        other.begin("77aa")
        holder = "(resetting)"
    else:
        (home / "lock").write_text('{"pid": 1, "host": "elsewhere", "purpose": "running", "begun": "77aa"}')
        holder = "process 1 on elsewhere (running)"
    with pytest.raises(ApplicationRunningError) as caught:
        lease.begin("5f3b")
    assert holder in caught.value.message
    assert str(home / "lock") in caught.value.message
    assert json.loads((home / "lock").read_text())["begun"] == "77aa"
    assert not lease.is_held


def test_a_lease_notices_that_its_directory_was_deleted(tmp_path: Path) -> None:
    lease = Lease.take(tmp_path / "app", "app", "running")
    shutil.rmtree(tmp_path / "app")
    with pytest.raises(SettingsError, match=r"lock' cannot be written: No such file or directory"):
        lease.begin("5f3a")
