"""A full disk below the local copies: a clear error, no damage, and work continues once there is space again.

The disk is a small file system in memory, mounted in its own user namespace. Where that is not allowed, the test is
skipped. Another test limits the size of files instead, which works everywhere.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unit.small_disk import run_on_small_disk

_SETUP = """
import os, resource, sys
from millstream.core.model.errors import StoreError
from millstream.core.ports import Version
from millstream.core.model.ids import TaskId
from millstream.core.state.segments.log import Manifest
from millstream.drivers.spark.executor.statelog import StateLog
from millstream.drivers.{engine} import open_local_copy

class State(dict):
    getValue = dict.get
    updateValue = dict.__setitem__
    def removeKey(self, key):
        self.pop(key, None)

committed, manifest, model = State(), Manifest(), {{}}

def batch(number):
    global committed, manifest
    changes = {{b"%d-%d" % (number, n): os.urandom(1000) for n in range(500)}}
    state = State(committed)
    log, copy = StateLog(state, TaskId(0, 0)), open_local_copy({directory!r}, 64 << 20)
    try:
        log.restore(manifest, copy)
    finally:
        copy.close_view()
    manifest = log.write(manifest, {{"s": list(changes.items())}}, copy)
    committed = state
    model.update(changes)

def check():
    copy = open_local_copy({directory!r}, 64 << 20)
    StateLog(State(committed), TaskId(0, 0)).restore(manifest, copy)
    found = dict(copy.open_view().open("s").scan(None, None))
    copy.close_view()
    assert found == model, (len(found), len(model))

def until_full():
    for number in range(100):
        try:
            batch(number)
        except StoreError as error:
            assert "cannot be used" in str(error) and "Check that the disk has space" in str(error), error
            return number
    raise AssertionError("the disk was never full")
"""

_LIMITED = """
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
failed = until_full()
for again in range(2):
    try:
        batch(failed)
        raise AssertionError("it is still full")
    except StoreError:
        pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
check()
for number in range(failed, failed + 3):
    batch(number)
check()
print("went on after batch", failed)
"""

_SMALL = """
filler = os.path.join(os.path.dirname({directory!r}), "filler")
with open(filler, "wb") as file:
    file.write(bytes(30 << 20))
failed = until_full()
os.unlink(filler)
check()
for number in range(failed, failed + 3):
    batch(number)
check()
print("went on after batch", failed)
"""


@pytest.mark.parametrize("engine", ["lmdb", "memory"])
def test_work_continues_after_files_could_not_grow(engine: str, tmp_path: Path) -> None:
    directory = str(tmp_path / "task")
    work = (_SETUP + _LIMITED).format(engine=engine, directory=directory)
    if engine == "memory":  # its file does not grow: writing the parked changes fails
        work = work.replace("3 << 20", "300 << 10")
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "went on after batch" in done.stdout


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb", "memory"])
def test_work_continues_after_the_disk_was_full(engine: str, tmp_path: Path) -> None:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    work = (_SETUP + _SMALL).format(engine=engine, directory=str(mounted / "task"))
    assert "went on after batch" in run_on_small_disk(mounted, work, "40m")
