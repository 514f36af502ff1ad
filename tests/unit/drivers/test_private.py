"""Private directories: random names, one user, nothing left behind."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.core.model.errors import StoreError
from millstream.drivers import private
from millstream.drivers.memory.memory_copy import open_local_copy
from millstream.drivers.spark.executor.copies import CopiesSpec

LONG_AGO = (1, 1)

USES_PRIVATE_DIRECTORY = """
import sys
from millstream.drivers.private import process_directory
print(process_directory(), flush=True)
sys.stdin.read()
"""


LONGEST = private._LONGEST


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(private, "_LONGEST", 1_000)
    return tmp_path


def test_a_directory_is_private_regardless_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private.make_private(tmp_path / "state" / "app")
        private_dir = private.private_directory()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "state" / "app", private_dir)] == [
        0o700,
        0o700,
    ]


def test_local_copies_are_private_on_hosts_where_only_executors_run(tmp_path: Path) -> None:
    spec = CopiesSpec(str(tmp_path / "app" / "tasks"), {"memory": open_local_copy}, {"s": "memory"}, 1 << 20)
    before = os.umask(0)
    try:
        spec.open_copy("memory", f"{spec.directory}/0_0/memory")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "app").stat().st_mode) == 0o700


def test_a_directory_that_belongs_to_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(self))

    (tmp_path / "app").mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", refused)
    spec = CopiesSpec(str(tmp_path / "app" / "tasks"), {"memory": open_local_copy}, {"s": "memory"}, 1 << 20)
    with pytest.raises(StoreError, match="belongs to this user"):
        spec.open_copy("memory", f"{spec.directory}/0_0/memory")


def test_a_directory_that_was_open_to_others_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir(mode=0o755)
    private.make_private(tmp_path / "app")
    assert stat.S_IMODE((tmp_path / "app").stat().st_mode) == 0o700


def test_a_long_path_for_temporary_files_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_LONGEST", 40)
    deep = tmp_path / ("d" * 40)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    private_dir = private.private_directory()
    private_dir.rmdir()
    assert private_dir.parent == Path("/tmp")


def test_a_private_directory_is_short_enough_for_spark_with_any_path_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(private, "_LONGEST", LONGEST)
    for length in range(5, 70):
        parent = Path("/tmp") / ("p" * length)
        parent.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        directory = private.private_directory()
        directory.rmdir()
        parent.rmdir()
        assert len(str(directory)) <= 60


def test_all_threads_that_follow_a_link_find_one_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(private.directory_behind, [tmp_path / "link"] * 64))
    assert len(set(found)) == 1
    assert list(tmp_path.glob(f"{private.PREFIX}*")) == [found[0]]


@pytest.mark.parametrize("state", ["gone", "open to others"])
def test_a_link_to_an_unusable_directory_is_replaced(tmp_path: Path, state: str) -> None:
    first = private.directory_behind(tmp_path / "link")
    if state == "gone":
        first.rmdir()
    else:
        first.chmod(0o755)
    assert private.directory_behind(tmp_path / "link") != first


def start_user(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", USES_PRIVATE_DIRECTORY],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    # A long path for temporary files is not used, so the directory of the process may be elsewhere.
    return process, Path(process.stdout.readline().strip())


def test_the_directory_of_a_process_is_locked_and_removed_with_it(tmp_path: Path) -> None:
    process, directory = start_user(tmp_path)
    opened = os.open(directory, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as systemd-tmpfiles does
    os.close(opened)
    process.communicate()
    assert not directory.exists()


def test_only_the_directories_of_ended_processes_are_removed() -> None:
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    killed, left = start_user(short)
    alive, used = start_user(short)
    try:
        killed.kill()
        killed.communicate()
        for directory in (left, used):
            os.utime(directory, LONG_AGO)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(short))
            private.remove_abandoned()
        assert (left.exists(), used.exists()) == (False, True)
    finally:
        alive.communicate()
        short.rmdir()
