"""The local copy in LMDB: what other engines do not have. The contract of all is in ``test_local_copies.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.model.errors import StoreError
from penstock.core.ports import ByteReader, Version
from penstock.drivers.lmdb.copy import MAX_KEY_BYTES, LmdbCopy, open_local_copy

ONE, TWO = Version(1, "aa"), Version(2, "bb")


@pytest.fixture
def copy(tmp_path: Path) -> LmdbCopy:
    return open_local_copy(str(tmp_path / "task"))


def test_a_view_is_of_one_moment(copy: LmdbCopy) -> None:
    """Whoever reads is not disturbed by an attempt of another process that writes."""
    copy.apply({"s": [(b"a", b"1")], "t": [(b"a", b"1")]}, ONE)
    view = copy.open_view()
    readers = [view.open("s"), view.open("t")]
    copy.apply({"s": [(b"a", b"2")], "t": [(b"a", None)]}, TWO)
    assert [reader.get(b"a") for reader in readers] == [b"1", b"1"]
    copy.close_view()


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
            match=r"store 's': a key of 511 bytes is too long for the engine LMDB, whose limit is 510\. "
            r'Give the store engine="rocksdb"',
        ):
            copy.check({"t": [(b"a", b"")], "s": [(b"a" * 511, None)]})
