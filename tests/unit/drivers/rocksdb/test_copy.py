"""The files of a copy in RocksDB have exactly one version at every time, even if a process dies."""

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
    copy_directory = str(tmp_path / "task")
    yield copy_directory
    if (copy := _OPEN.pop(copy_directory, None)) is not None:
        copy.close_view()


@pytest.fixture
def copy(directory: str) -> RocksCopy:
    return open_local_copy(directory, MEMORY_BYTES)


def content(copy: RocksCopy) -> dict[str, list[tuple[bytes, bytes]]]:
    view = copy.open_view()
    rows_by_store = {store: list(view.open(store).scan(None, None)) for store in STORES}
    copy.close_view()
    return rows_by_store


def rows_seen_by_queries(directory: str, version: Version) -> dict[str, list[tuple[bytes, bytes]]]:
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


def test_a_holder_file_that_cannot_be_written_is_a_store_error(directory: str, copy: RocksCopy) -> None:
    """Previously, a full disk was reported as an OSError that named a file. Here, a directory in its place causes the error."""
    holder = Path(directory) / "holder"
    holder.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot be used: .*Check that the disk has space"):
        copy.version()
    holder.rmdir()
    copy.apply({"s": ROWS}, FIRST)
    copy.close_view()
    assert rows_seen_by_queries(directory, FIRST)["s"] == ROWS


class TestClosing:
    def test_shows_content_and_version_to_readers_together(self, directory: str, copy: RocksCopy) -> None:
        """A handle that still exists simulates the time between the release of the first handle and that of the last."""
        copy.apply(dict.fromkeys(STORES, ROWS), FIRST)
        handles = [copy.open_view().open(store)._family for store in STORES]  # type: ignore[attr-defined]  # a handle of rocksdict
        copy.close_view()
        assert rows_seen_by_queries(directory, FIRST) == dict.fromkeys(STORES, ROWS)
        del handles

    def test_leaves_a_complete_version_if_the_process_dies(self, directory: str) -> None:
        run_until_death(
            directory,
            f"copy.apply({dict.fromkeys(STORES, ROWS)!r}, Version(1, 'aa'))\n"
            "handle = copy.open_view().open('s')._family\n"
            "copy.close_view()",
        )
        copy = open_local_copy(directory, MEMORY_BYTES)
        assert (copy.version(), content(copy)) == (FIRST, dict.fromkeys(STORES, ROWS))


class TestDroppedByteStores:
    def test_still_exist_in_the_previous_version_if_the_process_dies(
        self, directory: str, copy: RocksCopy
    ) -> None:
        copy.apply(dict.fromkeys(STORES, ROWS), FIRST)
        copy.close_view()
        run_until_death(directory, "copy.apply({}, Version(2, 'bb'), ['t/1'])")
        assert rows_seen_by_queries(directory, FIRST) == dict.fromkeys(STORES, ROWS)
        assert (copy.version(), content(copy)) == (FIRST, dict.fromkeys(STORES, ROWS))

    def test_leave_no_column_family_behind(self, directory: str, copy: RocksCopy) -> None:
        for number in range(5):
            copy.apply({f"s/{number}": ROWS}, Version(number, "t"), [f"s/{number - 1}"])
            copy.close_view()
        copy.version()
        copy.close_view()
        families = rocksdict.Rdict.list_cf(f"{directory}/{DATABASE}", options(MEMORY_BYTES))
        assert sorted(families) == ["5", "default"]


class TestDatabasesWithoutAColumnFamily:
    """A copy without the column family of one of its byte stores is damaged; the byte store is not just empty."""

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
            rows_seen_by_queries(directory, FIRST)

    def test_are_rebuilt(self, copy: RocksCopy) -> None:
        assert (copy.version(), copy.why_empty()) == (None, "the local copy was damaged")


def test_damaged_names_of_byte_stores_are_detected(directory: str, copy: RocksCopy) -> None:
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
        rows_seen_by_queries(directory, SECOND)
    del _OPEN[directory]
    again = open_local_copy(directory, 2 * MEMORY_BYTES)  # with a block cache of its own
    assert (again.version(), again.why_empty()) == (None, "the local copy was damaged")
