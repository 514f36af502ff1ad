"""The local copy in LMDB: what is specific to this engine. ``test_local_copies.py`` tests what holds for all engines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from millstream.core.model.errors import CopyMovedError, DamagedCopyError, StoreError
from millstream.core.ports import RESTORING, ByteReader, Version
from millstream.drivers.lmdb import lmdb_copy
from millstream.drivers.lmdb.lmdb_copy import LmdbCopy, open_local_copy
from millstream.drivers.lmdb.row_encoding import DATA_FILE, SHORT_BYTES, stored_key

FIRST, SECOND = Version(1, "aa"), Version(2, "bb")


@pytest.fixture
def copy(tmp_path: Path) -> LmdbCopy:
    return open_local_copy(str(tmp_path / "task"))


def test_a_view_is_a_snapshot(copy: LmdbCopy) -> None:
    """A reader does not see what is written after its view was opened."""
    copy.apply({"s": [(b"a", b"1")], "t": [(b"a", b"1")]}, FIRST)
    view = copy.open_view()
    readers = [view.open("s"), view.open("t")]
    copy.apply({"s": [(b"a", b"2")], "t": [(b"a", None)]}, SECOND)
    assert [reader.get(b"a") for reader in readers] == [b"1", b"1"]
    copy.close_view()


def test_the_error_for_a_copy_at_the_size_limit_of_lmdb_recommends_rocksdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither more disk space nor another state_dir would help."""
    monkeypatch.setattr(lmdb_copy, "_MAP_SIZE", 1 << 20)
    copy = open_local_copy(str(tmp_path / "task"))
    copy.apply({"s": [(b"a", b"1")]}, FIRST)
    with pytest.raises(StoreError, match=r"LMDB .* store_engine='rocksdb'"):
        copy.apply({"s": [(b"%d" % number, bytes(1000)) for number in range(2000)]}, SECOND)
    assert open_local_copy(str(tmp_path / "task")).version() == FIRST


class TestManyCopies:
    """Each open copy takes 64 GiB of the address space of a process, which has room for two thousand."""

    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lmdb_copy, "_OPEN", {})
        monkeypatch.setattr(lmdb_copy, "_MOST_OPEN", 5)

    @staticmethod
    def _opened(directory: Path, numbers: range) -> list[LmdbCopy]:
        return [open_local_copy(str(directory / f"0_{number}"), run="run") for number in numbers]

    def test_a_process_keeps_the_most_recently_used_copies_open(self, tmp_path: Path) -> None:
        first = self._opened(tmp_path, range(3))
        assert all(copy.alive() for copy in first)
        first += self._opened(tmp_path, range(3, 7))
        assert [copy.alive() for copy in first] == [False] * 2 + [True] * 5
        assert self._opened(tmp_path, range(2, 3)) == [first[2]], "an open copy is not opened again"
        self._opened(tmp_path, range(2))
        assert [copy.alive() for copy in first] == [False, False, True, False, False, True, True]

    def test_a_closed_copy_has_its_content_when_it_is_opened_again(self, tmp_path: Path) -> None:
        for number, copy in enumerate(self._opened(tmp_path, range(3))):
            copy.apply({"s": [(b"a", b"%d" % number)]}, FIRST)
        self._opened(tmp_path, range(3, 9))
        for number, copy in enumerate(self._opened(tmp_path, range(3))):
            assert copy.version() == FIRST
            assert copy.open_view().open("s").get(b"a") == b"%d" % number
            copy.close_view()

    def test_an_open_view_stays_open(self, tmp_path: Path) -> None:
        [copy] = self._opened(tmp_path, range(1))
        copy.apply({"s": [(b"a", b"1")]}, FIRST)
        view = copy.open_view()
        self._opened(tmp_path, range(1, 9))
        assert view.open("s").get(b"a") == b"1"
        copy.close_view()


class TestAnotherWritingProcess:
    """An executor that has outlived its application writes the copy while a task of the next application uses it."""

    @pytest.fixture
    def moved(self, copy: LmdbCopy) -> LmdbCopy:
        copy.apply({"s": [(b"a", b"1"), (b"b", b"1")]}, FIRST)
        assert copy.version() == FIRST
        work = (
            "import sys; from millstream.core.ports import Version; from millstream.drivers.lmdb.lmdb_copy import open_local_copy\n"
            "open_local_copy(sys.argv[1]).apply({'s': [(b'a', b'2')]}, Version(2, 'bb'))"
        )
        directory = str(copy.directory.path)
        subprocess.run([sys.executable, "-c", work, directory], check=True)
        return copy

    def test_is_detected_before_changes_are_written(self, moved: LmdbCopy) -> None:
        with pytest.raises(CopyMovedError, match="another attempt also writes it"):
            moved.apply({"s": [(b"a", b"wrong"), (b"b", b"wrong")]}, Version(2, "cc"))
        assert moved.version() == SECOND
        assert [*moved.open_view().open("s").scan(None, None)] == [(b"a", b"2"), (b"b", b"1")]

    def test_is_detected_before_the_first_of_many_transactions(self, moved: LmdbCopy) -> None:
        moved._budget = 1 << 16
        with pytest.raises(CopyMovedError):
            moved.apply({"s": [(b"%d" % n, b"wrong") for n in range(100)]}, Version(2, "cc"))
        assert moved.version() == SECOND

    def test_is_detected_before_anything_is_read(self, moved: LmdbCopy) -> None:
        with pytest.raises(CopyMovedError):
            moved.open_view()
        moved.close_view()
        assert moved.open_view().open("s").get(b"a") == b"2", "values that are read again are of one version"

    def test_that_also_restores_is_detected_when_the_file_is_opened_again(
        self, copy: LmdbCopy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both processes restore from nothing, so the versions are equal, and only the files differ."""
        copy.apply({"s": [(b"a", b"1")]}, RESTORING)
        assert copy.version() == RESTORING
        work = (
            "import sys; from millstream.core.ports import RESTORING; from millstream.drivers.lmdb.lmdb_copy import open_local_copy\n"
            "copy = open_local_copy(sys.argv[1]); copy.wipe(); copy.apply({'s': [(b'a', b'2')]}, RESTORING)"
        )
        subprocess.run([sys.executable, "-c", work, str(copy.directory.path)], check=True)
        monkeypatch.setattr("millstream.drivers.lmdb.lmdb_copy._MAX_STORES", 4)
        with pytest.raises(CopyMovedError):
            copy.apply({"s": [(b"a", b"wrong")], "t": [(b"a", b"wrong")]}, FIRST)
        assert copy.version() == RESTORING


class TestVerification:
    """The first process of a run that opens a copy verifies its file; the other processes of the run do not."""

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> Iterator[Callable[[str], LmdbCopy]]:
        """Yield a function that opens a damaged copy of the run "one" as another process would."""
        directory = str(tmp_path / "task")
        first = open_local_copy(directory, run="one")
        first.apply({"s": [(b"a", b"value of a")]}, FIRST)
        first._env.close()
        file = tmp_path / "task" / DATA_FILE
        file.write_bytes(file.read_bytes().replace(b"value of a", b"value of b"))
        opened: list[LmdbCopy] = []

        def open_damaged(run: str) -> LmdbCopy:
            opened.append(LmdbCopy(directory, run=run))
            return opened[-1]

        yield open_damaged
        for copy in opened:
            copy._env.close()

    def test_another_process_of_the_run_finds_damage_when_it_reads(
        self, damaged: Callable[[str], LmdbCopy]
    ) -> None:
        copy = damaged("one")
        assert copy.version() == FIRST
        with pytest.raises(DamagedCopyError):
            copy.open_view().open("s").get(b"a")

    @pytest.mark.parametrize("run", ["two", ""])
    def test_the_next_run_finds_damage_when_it_opens_the_copy(
        self, damaged: Callable[[str], LmdbCopy], run: str
    ) -> None:
        assert damaged(run).why_empty() == "the local copy was damaged"

    def test_a_file_that_was_replaced_is_verified(
        self, damaged: Callable[[str], LmdbCopy], tmp_path: Path
    ) -> None:
        file = tmp_path / "task" / DATA_FILE
        shutil.copy(file, tmp_path / "other")
        (tmp_path / "other").replace(file)
        assert damaged("one").why_empty() == "the local copy was damaged"


def test_damage_that_is_found_while_writing_is_reported_once(
    copy: LmdbCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise lmdb.CorruptedError("a page")

    copy.apply({"s": [(b"a", b"1")]}, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(copy, "_write", broken)
        with pytest.raises(DamagedCopyError, match="a page"):
            copy.apply({"s": [(b"a", b"2")]}, SECOND)
    copy.apply({"s": [(b"a", b"2")]}, SECOND)
    copy.close_view()
    assert copy.version() == SECOND, "the recreated copy stays"


class TestKeys:
    KEYS = (
        b"",
        b"\x00",
        b"a",
        b"a" * SHORT_BYTES,
        b"a" * 511,
        b"b",
        b"\xff" * SHORT_BYTES,
        b"\xff" * 100_000,
    )

    @pytest.fixture
    def reader(self, copy: LmdbCopy) -> ByteReader:
        copy.apply({"s": [(key, b"%d" % n) for n, key in enumerate(self.KEYS)]}, FIRST)
        return copy.open_view().open("s")

    def test_may_have_any_length(self, reader: ByteReader) -> None:
        assert [reader.get(key) for key in self.KEYS] == [b"%d" % n for n in range(8)]
        assert [key for key, _ in reader.scan(None, None)] == [*self.KEYS]
        assert [key for key, _ in reader.scan(None, None, reverse=True)] == [*self.KEYS[::-1]]
        assert reader.approximate_count() == 8

    @pytest.mark.parametrize("more", [b"", b"\x00", b"a", b"a" * 600])
    def test_that_are_long_can_bound_a_scan(self, reader: ByteReader, more: bytes) -> None:
        bound = b"a" * 512 + more
        below, above = [*self.KEYS[:5]], [*self.KEYS[5:]]
        assert [key for key, _ in reader.scan(None, bound)] == below
        assert [key for key, _ in reader.scan(None, bound, reverse=True)] == below[::-1]
        assert [key for key, _ in reader.scan(bound, None)] == above
        assert [key for key, _ in reader.scan(bound, None, reverse=True)] == above[::-1]

    def test_that_equal_the_stored_form_of_another_key_are_distinct(self, copy: LmdbCopy) -> None:
        long = b"a" * 600
        alike = stored_key(long)[1:]
        copy.apply({"s": [(long, b"1"), (alike, b"2")]}, FIRST)
        reader = copy.open_view().open("s")
        assert (reader.get(long), reader.get(alike)) == (b"1", b"2")


def test_a_copy_in_an_older_format_is_discarded(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    with lmdb.open(str(tmp_path / "task"), max_dbs=8) as old, old.begin(write=True) as transaction:
        transaction.put(b"version", b"1 aa ", db=old.open_db(b"/version", txn=transaction))
    boot = Path("/proc/sys/kernel/random/boot_id")
    (tmp_path / "task" / "boot-id").write_text(boot.read_text().strip() if boot.exists() else "")
    copy = open_local_copy(str(tmp_path / "task"))
    assert copy.version() is None
    assert copy.why_empty() == "the local copy was created by another version of Millstream"
    assert not (tmp_path / "task" / "data.mdb").exists()
