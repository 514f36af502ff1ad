"""The memory of a local copy, measured in separate processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.core.model.errors import StoreError
from millstream.core.ports import Version
from millstream.drivers.lmdb.pages import LINUX

from .engines import COPIES, Engine

BOUND = 32 << 20
FIXED = 24 << 20
"""Memory that the bound does not cover: the libraries of an engine, and the changes that are written."""

_WORK = """
import sys, random
from millstream.core.ports import Version
from millstream.drivers.{engine} import open_local_copy
import ctypes
def resident():
    with open("/proc/self/statm") as told:
        return int(told.read().split()[1]) * 4096
open_local_copy({directory!r} + "-warm", {bound}).apply({{"s": [(b"a", b"b")]}}, Version(1, "t"))
before, most = resident(), 0
def look():
    global most
    most = max(most, resident() - before)
rng = random.Random(1)
copy = open_local_copy({directory!r}, {bound})
for batch in range(30):
    changes = {{b"key-%08d" % n: rng.randbytes(100) for n in rng.sample(range(1_000_000), 20_000)}}
    copy.apply({{"s": list(changes.items())}}, Version(batch, "t"))
    look()
    copy.close_view()
reader = copy.open_view().open("s")
for count in range(60_000):
    reader.get(b"key-%08d" % rng.randrange(1_000_000))
    if count % 512 == 0:
        look()
for count, _ in enumerate(reader.scan(None, None)):
    if count % 512 == 0:
        look()
copy.close_view()
print(most)
"""


@pytest.mark.skipif(not LINUX, reason="pages are given back on Linux only")
@pytest.mark.parametrize("name", ["lmdb", "rocksdb"])
def test_a_copy_that_is_larger_than_its_memory_limit_stays_within_the_limit(
    name: str, tmp_path: Path
) -> None:
    work = _WORK.format(engine=name, directory=str(tmp_path / "task"), bound=BOUND)
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken = sum(path.stat().st_size for path in (tmp_path / "task").rglob("*") if path.is_file())
    assert taken > 1.4 * BOUND
    assert int(done.stdout) < BOUND + FIXED


def test_stores_in_memory_that_exceed_the_limit_are_refused(tmp_path: Path) -> None:
    engine: Engine = COPIES["memory"]
    copies = [engine.open(str(tmp_path / name), 1 << 20) for name in ("one", "two")]
    entries = [(b"%d" % n, b"x" * 1000) for n in range(500)]
    copies[0].apply({"s": entries}, Version(1, "t"))
    with pytest.raises(
        StoreError, match=r"keeps in memory take about 1 MiB, more than the 1 MiB .* another engine"
    ):
        copies[1].apply({"s": entries}, Version(1, "t"))
    copies[1].apply({"s": [(key, None) for key, _ in entries]}, Version(2, "t"))
    for name in ("one", "two"):
        engine.die(str(tmp_path / name))
