"""The local copy in LMDB: versions, views, parked changes, and directories that others meddle with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.core.model.errors import StoreError
from penstock.core.ports import ByteReader, Version
from penstock.drivers.lmdb.copy import MAX_KEY_BYTES, LmdbCopy, open_local_copy

ONE, TWO = Version(1, "aa"), Version(2, "bb")


@pytest.fixture
def copy(tmp_path: Path) -> LmdbCopy:
    return open_local_copy(str(tmp_path / "task"))


def content(copy: LmdbCopy, store: str = "s") -> list[tuple[bytes, bytes]]:
    reader = copy.open_view().open(store)
    try:
        return list(reader.scan(None, None))
    finally:
        copy.close_view()


class TestVersions:
    def test_a_new_copy_has_none(self, copy: LmdbCopy) -> None:
        assert copy.version() is None

    def test_are_written_with_the_changes(self, copy: LmdbCopy) -> None:
        copy.apply({"s": [(b"a", b"1"), (b"b", b"2")], "t": [(b"x", b"9")]}, ONE)
        assert (copy.version(), content(copy), content(copy, "t")) == (
            ONE,
            [(b"a", b"1"), (b"b", b"2")],
            [(b"x", b"9")],
        )
        copy.apply({"s": [(b"b", None), (b"never", None), (b"a", b"")]}, TWO)
        assert (copy.version(), content(copy)) == (TWO, [(b"a", b"")])

    @pytest.mark.parametrize("version", [Version(-1, "restoring"), Version(7, ""), Version(0, "x")])
    def test_are_read_as_they_were_written(self, copy: LmdbCopy, version: Version) -> None:
        copy.apply({}, version)
        assert copy.version() == version

    def test_wiping_leaves_nothing(self, copy: LmdbCopy) -> None:
        copy.apply({"s": [(b"a", b"1")]}, ONE)
        copy.park(TWO, b"payload")
        copy.wipe()
        assert (copy.version(), content(copy), copy.parked(TWO)) == (None, [], None)
        copy.apply({"s": [(b"b", b"2")]}, TWO)
        assert (copy.version(), content(copy)) == (TWO, [(b"b", b"2")])

    def test_a_store_may_have_any_name_a_store_can_have(self, copy: LmdbCopy) -> None:
        copy.apply({"penstock.meta": [(b"a", b"1")]}, ONE)
        assert (copy.version(), content(copy, "penstock.meta")) == (ONE, [(b"a", b"1")])


class TestViews:
    def test_are_of_one_moment(self, copy: LmdbCopy) -> None:
        copy.apply({"s": [(b"a", b"1")], "t": [(b"a", b"1")]}, ONE)
        view = copy.open_view()
        readers = [view.open("s"), view.open("t")]
        copy.apply({"s": [(b"a", b"2")], "t": [(b"a", None)]}, TWO)
        assert [reader.get(b"a") for reader in readers] == [b"1", b"1"]
        copy.close_view()
        assert content(copy) == [(b"a", b"2")]

    def test_of_a_store_that_was_never_written_are_empty(self, copy: LmdbCopy) -> None:
        assert content(copy, "new") == []

    def test_of_no_store(self, copy: LmdbCopy) -> None:
        copy.open_view()
        copy.close_view()
        copy.close_view()

    def test_two_objects_may_share_a_directory_one_after_the_other(self, tmp_path: Path) -> None:
        first = open_local_copy(str(tmp_path / "x"))
        first.apply({"s": [(b"a", b"1")]}, ONE)
        assert open_local_copy(str(tmp_path / "x")) is first


class TestKeys:
    @pytest.fixture
    def reader(self, copy: LmdbCopy) -> ByteReader:
        self.keys = [b"", b"\x00", b"a", b"a" * MAX_KEY_BYTES, b"b", b"\xff" * MAX_KEY_BYTES]
        copy.apply({"s": [(key, b"%d" % n) for n, key in enumerate(self.keys)]}, ONE)
        return copy.open_view().open("s")

    def test_may_be_empty_or_as_long_as_the_engine_takes(self, reader: ByteReader) -> None:
        assert [reader.get(key) for key in self.keys] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert [key for key, _ in reader.scan(None, None)] == self.keys
        assert [key for key, _ in reader.scan(None, None, reverse=True)] == self.keys[::-1]
        assert reader.approximate_count() == 6

    def test_that_are_too_long_are_not_there(self, reader: ByteReader) -> None:
        assert reader.get(b"a" * (MAX_KEY_BYTES + 1)) is None

    @pytest.mark.parametrize("more", [b"\x00", b"a", b"a" * 600])
    def test_that_are_too_long_can_bound_a_scan(self, reader: ByteReader, more: bytes) -> None:
        bound = b"a" * MAX_KEY_BYTES + more
        below, above = self.keys[:4], self.keys[4:]
        assert [key for key, _ in reader.scan(None, bound)] == below
        assert [key for key, _ in reader.scan(None, bound, reverse=True)] == below[::-1]
        assert [key for key, _ in reader.scan(bound, None)] == above
        assert [key for key, _ in reader.scan(bound, None, reverse=True)] == above[::-1]

    def test_that_are_too_long_are_refused_before_they_are_committed(self, copy: LmdbCopy) -> None:
        copy.check({"s": [(b"a" * MAX_KEY_BYTES, b"")], "t": []})
        with pytest.raises(
            StoreError,
            match="store 's': a key of 511 bytes is too long for the engine LMDB, whose limit is 510",
        ):
            copy.check({"t": [(b"a", b"")], "s": [(b"a" * 511, None)]})


class TestParkedChanges:
    def test_are_of_exactly_one_version(self, copy: LmdbCopy) -> None:
        copy.park(TWO, b"payload")
        assert copy.parked(TWO) == b"payload"
        assert [copy.parked(v) for v in (ONE, Version(2, "other"), Version(3, "bb"))] == [None, None, None]

    def test_of_several_attempts_lie_side_by_side(self, copy: LmdbCopy) -> None:
        copy.park(TWO, b"first")
        copy.park(Version(2, "again"), b"second")
        copy.park(TWO, b"third")
        assert (copy.parked(TWO), copy.parked(Version(2, "again"))) == (b"third", b"second")

    def test_of_long_ago_are_removed(self, copy: LmdbCopy) -> None:
        for number in range(1, 6):
            copy.park(Version(number, "t"), b"%d" % number)
        assert [copy.parked(Version(number, "t")) for number in range(1, 6)] == [None, None, None, b"4", b"5"]


class TestADirectoryThatWasTakenAway:
    @pytest.mark.parametrize("made_again", [False, True])
    def test_is_an_empty_copy(self, tmp_path: Path, made_again: bool) -> None:
        directory = tmp_path / "task"
        copy = open_local_copy(str(directory))
        copy.apply({"s": [(b"a", b"1")]}, ONE)
        shutil.rmtree(directory)
        if made_again:
            directory.mkdir()
        again = open_local_copy(str(directory))
        assert (again.version(), content(again)) == (None, [])
        again.apply({"s": [(b"a", b"2")]}, TWO)
        assert open_local_copy(str(directory)) is again

    def test_is_told_when_it_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(
            StoreError, match=r"the local copy in .*/file/task cannot be used: .* the setting state_dir"
        ):
            open_local_copy(str(tmp_path / "file" / "task"))

    def test_parking_there_is_told_too(self, tmp_path: Path) -> None:
        copy = open_local_copy(str(tmp_path / "task"))
        shutil.rmtree(tmp_path / "task")
        with pytest.raises(StoreError, match=r"cannot be used: .*No such file"):
            copy.park(ONE, b"payload")


def test_a_copy_of_another_boot_is_thrown_away(tmp_path: Path) -> None:
    """Pages are never synced, so after a crash of the operating system nothing in the directory can be trusted."""
    first, moved = tmp_path / "first", tmp_path / "moved"
    copy = LmdbCopy(str(first))
    copy.apply({"s": [(b"a", b"1")]}, ONE)
    copy.park(TWO, b"payload")
    shutil.copytree(first, moved)
    assert LmdbCopy(str(moved)).version() == ONE
    crashed = tmp_path / "crashed"
    shutil.copytree(first, crashed)
    (crashed / "boot-id").write_text("an earlier boot")
    after = LmdbCopy(str(crashed))
    assert (after.version(), after.parked(TWO)) == (None, None)
