"""The files of a copy in RocksDB: whenever a process opens them, or dies, they have exactly one version."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import rocksdict

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.ports import Version
from millstream.core.state.segments.log import Manifest
from millstream.drivers.rocksdb import open_local_copy
from millstream.drivers.rocksdb.rocksdb_copy import _OPEN, DATABASE, RocksCopy
from millstream.drivers.rocksdb.rocksdb_options import options
from millstream.drivers.rocksdb.rocksdb_queries import RocksQueries

FIRST, SECOND = Version(1, "aa"), Version(2, "bb")
ROWS = [(b"%02d" % n, b"1") for n in range(50)]
STORES = ("s", "t/1")
MEMORY_BYTES = 16 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    made = str(tmp_path / "task")
    yield made
    if (copy := _OPEN.pop(made, None)) is not None:
        copy.close_view()


@pytest.fixture
def copy(directory: str) -> RocksCopy:
    return open_local_copy(directory, MEMORY_BYTES)


def content(copy: RocksCopy) -> dict[str, list[tuple[bytes, bytes]]]:
    view = copy.open_view()
    found = {store: list(view.open(store).scan(None, None)) for store in STORES}
    copy.close_view()
    return found


def seen(directory: str, version: Version) -> dict[str, list[tuple[bytes, bytes]]]:
    view = RocksQueries(directory).view(Manifest(version.number, (version.token,)))
    return {store: list(view.open(store).scan(None, None)) for store in STORES}


def run_until_death(directory: str, statements: str) -> None:
    """Run statements in another process, which then ends without closing anything."""
    code = (
        "import os\n"
        "from millstream.core.ports import Version\n"
        "from millstream.drivers.rocksdb import open_local_copy\n"
        f"copy = open_local_copy({directory!r}, {MEMORY_BYTES})\n"
        f"{statements}\n"
        "os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr


def test_a_copy_whose_holder_cannot_be_written_cannot_be_used(directory: str, copy: RocksCopy) -> None:
    """A full disk ended the application with an OSError that named a file. A directory stands in for it here."""
    holder = Path(directory) / "holder"
    holder.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot be used: .*Check that the disk has space"):
        copy.version()
    holder.rmdir()
    copy.apply({"s": ROWS}, FIRST)
    copy.close_view()
    assert seen(directory, FIRST)["s"] == ROWS


class TestClosing:
    def test_shows_a_reader_the_content_with_the_version(self, directory: str, copy: RocksCopy) -> None:
        """A handle that still exists is the moment after the release of the first handle and before that of the last."""
        copy.apply(dict.fromkeys(STORES, ROWS), FIRST)
        handles = [copy.open_view().open(store)._family for store in STORES]  # type: ignore[attr-defined]  # a handle of rocksdict
        copy.close_view()
        assert seen(directory, FIRST) == dict.fromkeys(STORES, ROWS)
        del handles

    def test_leaves_a_whole_version_if_the_process_dies_meanwhile(self, directory: str) -> None:
        run_until_death(
            directory,
            f"copy.apply({dict.fromkeys(STORES, ROWS)!r}, Version(1, 'aa'))\n"
            "handle = copy.open_view().open('s')._family\n"
            "copy.close_view()",
        )
        copy = open_local_copy(directory, MEMORY_BYTES)
        assert (copy.version(), content(copy)) == (FIRST, dict.fromkeys(STORES, ROWS))


class TestDroppedByteStores:
    def test_still_exist_in_the_version_before_if_the_process_dies(
        self, directory: str, copy: RocksCopy
    ) -> None:
        copy.apply(dict.fromkeys(STORES, ROWS), FIRST)
        copy.close_view()
        run_until_death(directory, "copy.apply({}, Version(2, 'bb'), ['t/1'])")
        assert seen(directory, FIRST) == dict.fromkeys(STORES, ROWS)
        assert (copy.version(), content(copy)) == (FIRST, dict.fromkeys(STORES, ROWS))

    def test_leave_no_column_family_behind(self, directory: str, copy: RocksCopy) -> None:
        for number in range(5):
            copy.apply({f"s/{number}": ROWS}, Version(number, "t"), [f"s/{number - 1}"])
            copy.close_view()
        copy.version()
        copy.close_view()
        families = rocksdict.Rdict.list_cf(f"{directory}/{DATABASE}", options(MEMORY_BYTES))
        assert sorted(families) == ["5", "default"]


class TestDatabasesWithoutAFamily:
    """Files that name the column family of a byte store, but do not have it, are not a copy with an empty byte store."""

    @pytest.fixture
    def copy(self, directory: str) -> RocksCopy:
        copy = open_local_copy(directory, MEMORY_BYTES)
        copy.apply(dict.fromkeys(STORES, ROWS), FIRST)
        copy.close_view()
        path = f"{directory}/{DATABASE}"
        database = rocksdict.Rdict(
            path, options(MEMORY_BYTES), {"1": options(MEMORY_BYTES), "2": options(MEMORY_BYTES)}
        )
        database.drop_column_family("1")
        del database
        gc.collect()
        return copy

    def test_are_not_read(self, directory: str, copy: RocksCopy) -> None:
        with pytest.raises(CopyMovedError):
            seen(directory, FIRST)

    def test_are_rebuilt(self, copy: RocksCopy) -> None:
        assert (copy.version(), copy.why_empty()) == (None, "the local copy was damaged")


def test_damaged_names_are_not_a_copy_without_byte_stores(directory: str, copy: RocksCopy) -> None:
    """The names and the newest version are in different files."""
    copy.apply({"s": ROWS}, FIRST)
    copy.close_view()
    copy.apply({"s": []}, SECOND)
    copy.close_view()
    (file,) = (path for path in Path(directory).rglob("*.sst") if b"name s" in path.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.find(b"name s")] ^= 1
    file.write_bytes(data)
    with pytest.raises(CopyMovedError):
        seen(directory, SECOND)
    del _OPEN[directory]
    again = open_local_copy(directory, 2 * MEMORY_BYTES)  # with a block cache of its own
    assert (again.version(), again.why_empty()) == (None, "the local copy was damaged")
