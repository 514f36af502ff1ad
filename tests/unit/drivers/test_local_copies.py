"""The contract of local copies, for every engine: versions, views, dropped byte stores, parked changes, processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core.model.errors import StoreError
from millstream.core.ports import LocalCopy, ParkedChanges, Version

from .engines import COPIES, Engine
from .state import segments_by_store

FIRST, SECOND, THIRD = Version(1, "aa"), Version(2, "bb"), Version(3, "cc")


@pytest.fixture(params=COPIES.values(), ids=COPIES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine: Engine = request.param
    yield engine
    for directory in list(engine.opened):
        if directory.startswith(str(tmp_path)):
            engine.die(directory)


@pytest.fixture
def copy(engine: Engine, tmp_path: Path) -> LocalCopy:
    return engine.open(str(tmp_path / "task"))


def content(copy: LocalCopy, store: str = "s") -> list[tuple[bytes, bytes]]:
    reader = copy.open_view().open(store)
    try:
        return list(reader.scan(None, None))
    finally:
        copy.close_view()


class TestVersions:
    def test_a_new_copy_has_no_version(self, copy: LocalCopy) -> None:
        assert copy.version() is None
        assert copy.why_empty().startswith("the local copy is missing")

    def test_are_written_with_the_changes(self, copy: LocalCopy) -> None:
        copy.apply({"s": [(b"a", b"1"), (b"b", b"2")], "t": [(b"x", b"9")]}, FIRST)
        assert (copy.version(), content(copy), content(copy, "t")) == (
            FIRST,
            [(b"a", b"1"), (b"b", b"2")],
            [(b"x", b"9")],
        )
        copy.apply({"s": [(b"b", None), (b"never", None), (b"a", b"")]}, SECOND)
        assert (copy.version(), content(copy)) == (SECOND, [(b"a", b"")])

    @pytest.mark.parametrize(
        "version", [Version(-1, "restoring"), Version(7, ""), Version(0, "x"), Version(3, "x", "y")]
    )
    def test_are_read_as_they_were_written(self, copy: LocalCopy, version: Version) -> None:
        copy.apply({}, version)
        assert copy.version() == version

    def test_wiping_removes_the_version_and_the_content(self, copy: LocalCopy) -> None:
        copy.apply({"s": [(b"a", b"1")], "t/1": [(b"a", b"1")]}, FIRST)
        copy.wipe()
        assert (copy.version(), content(copy), copy.names()) == (None, [], frozenset())
        copy.apply({"s": [(b"b", b"2")]}, SECOND)
        assert (copy.version(), content(copy)) == (SECOND, [(b"b", b"2")])

    def test_a_copy_accepts_every_valid_name_of_a_store(self, copy: LocalCopy) -> None:
        for name in ("millstream.meta", "version", "name", "default", "s" * 249):
            copy.apply({name: [(b"a", name.encode())]}, FIRST)
            assert (copy.version(), content(copy, name)) == (FIRST, [(b"a", name.encode())])

    def test_many_changes_are_one_version(self, copy: LocalCopy) -> None:
        """There are more changes than one transaction of an engine can hold."""
        changes = [(b"%07d" % n, b"x" * 50) for n in range(60_000)]
        copy.apply({"s": changes[::-1], "t": changes[:10]}, FIRST)
        assert (copy.version(), content(copy), len(content(copy, "t"))) == (FIRST, changes, 10)
        copy.apply({"s": [(key, None) for key, _ in changes]}, SECOND)
        assert (copy.version(), content(copy)) == (SECOND, [])


class TestViews:
    def test_show_the_content_that_was_written(self, copy: LocalCopy) -> None:
        copy.apply({"s": [(b"a", b"1")], "t": [(b"a", b"2")]}, FIRST)
        view = copy.open_view()
        assert [view.open(name).get(b"a") for name in ("s", "t")] == [b"1", b"2"]
        copy.close_view()

    def test_of_a_store_that_was_never_written_are_empty(self, copy: LocalCopy) -> None:
        assert content(copy, "new") == []
        assert "new" not in copy.names()

    def test_can_be_closed_when_none_is_open(self, copy: LocalCopy) -> None:
        copy.close_view()
        copy.open_view()
        copy.close_view()
        copy.close_view()

    def test_can_be_closed_in_the_middle_of_a_scan(self, copy: LocalCopy) -> None:
        copy.apply({"s": [(b"%d" % n, b"") for n in range(9)]}, FIRST)
        reader = copy.open_view().open("s")
        scan = reader.scan(None, None)
        assert next(scan) == (b"0", b"")
        copy.close_view()
        copy.apply({"s": [(b"0", None)]}, SECOND)
        assert len(content(copy)) == 8
        del reader, scan

    def test_accept_keys_of_any_length_as_bounds(self, copy: LocalCopy) -> None:
        copy.apply({"s": [(b"a" * 500, b"1"), (b"b", b"2")]}, FIRST)
        reader = copy.open_view().open("s")
        assert reader.get(b"a" * 5000) is None
        assert [value for _, value in reader.scan(b"a" * 5000, None)] == [b"2"]
        assert [value for _, value in reader.scan(None, b"a" * 5000, reverse=True)] == [b"1"]
        copy.close_view()


class TestDroppedByteStores:
    def test_are_removed_with_the_version_that_drops_them(self, copy: LocalCopy) -> None:
        copy.apply({"s/1": [(b"a", b"1")], "s/2": [(b"a", b"2")]}, FIRST)
        copy.apply({"s/3": [(b"a", b"3")]}, SECOND, ["s/1", "never"])
        assert (copy.version(), copy.names()) == (SECOND, {"s/2", "s/3"})
        assert [content(copy, f"s/{n}") for n in (1, 2, 3)] == [[], [(b"a", b"2")], [(b"a", b"3")]]

    def test_are_empty_when_they_are_created_again(self, copy: LocalCopy) -> None:
        copy.apply({"s/1": [(b"a", b"1")]}, FIRST)
        copy.apply({}, SECOND, ["s/1"])
        copy.apply({"s/1": [(b"b", b"2")]}, THIRD)
        assert content(copy, "s/1") == [(b"b", b"2")]

    def test_can_be_dropped_one_after_the_other(self, copy: LocalCopy) -> None:
        for number in range(100):
            copy.apply({f"s/{number}": [(b"a", b"%d" % number)]}, Version(number, "t"), [f"s/{number - 5}"])
        assert copy.names() == {f"s/{number}" for number in range(95, 100)}
        assert content(copy, "s/99") == [(b"a", b"99")]


class TestParkedChanges:
    def test_belong_to_exactly_one_version(self, copy: LocalCopy) -> None:
        copy.park(SECOND, segments_by_store({"s": [(b"a", b"1"), (b"b", None)], "t": []}), ["u/1"])
        assert copy.parked(SECOND) == ParkedChanges({"s": [(b"a", b"1"), (b"b", None)], "t": []}, ["u/1"])
        assert [copy.parked(v) for v in (FIRST, Version(2, "other"), THIRD)] == [None, None, None]

    def test_of_several_attempts_are_kept_separately(self, copy: LocalCopy) -> None:
        copy.park(SECOND, segments_by_store({"s": [(b"a", b"1")]}))
        copy.park(Version(2, "again"), segments_by_store({"s": [(b"a", b"2")]}))
        copy.park(SECOND, segments_by_store({"s": [(b"a", b"3")]}))
        found = [copy.parked(version) for version in (SECOND, Version(2, "again"))]
        assert [parked and parked.changes["s"] for parked in found] == [[(b"a", b"3")], [(b"a", b"2")]]

    def test_of_old_versions_are_removed(self, engine: Engine, copy: LocalCopy) -> None:
        for number in range(1, 101):
            copy.park(Version(number, "t"), {})
        kept = [number for number in range(1, 101) if copy.parked(Version(number, "t")) is not None]
        assert kept == list(range(99, 101) if engine.outlives else range(69, 101))

    @pytest.mark.parametrize("size", [0, 1, 4, 10, 60, 80])
    def test_that_were_truncated_are_ignored(
        self, copy: LocalCopy, tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        copy.park(SECOND, segments_by_store({"s": [(b"a", b"1")]}), ["u/1"])
        (file,) = (tmp_path / "task").glob("parked-*")
        whole = file.read_bytes()
        assert len(whole) > 80
        file.write_bytes(whole[:size])
        assert copy.parked(SECOND) is None
        assert "parked changes" in caplog.text

    @pytest.mark.parametrize("position", [0, 5, 30, -1])
    def test_that_were_overwritten_are_ignored(self, copy: LocalCopy, tmp_path: Path, position: int) -> None:
        copy.park(SECOND, segments_by_store({"s": [(b"a", b"1")]}))
        (file,) = (tmp_path / "task").glob("parked-*")
        damaged = bytearray(file.read_bytes())
        damaged[position] ^= 0xFF
        file.write_bytes(damaged)
        assert copy.parked(SECOND) is None


class TestDirectories:
    @pytest.mark.parametrize("recreated", [False, True])
    def test_that_were_deleted_hold_an_empty_copy(
        self, engine: Engine, tmp_path: Path, recreated: bool
    ) -> None:
        directory = str(tmp_path / "task")
        copy = engine.open(directory)
        copy.apply({"s": [(b"a", b"1")]}, FIRST)
        copy.close_view()
        shutil.rmtree(directory)
        if recreated:
            os.mkdir(directory)
        again = engine.open(directory)
        if engine.outlives:
            assert (again.version(), content(again)) == (None, [])
        again.apply({"s": [(b"a", b"2")]}, SECOND)
        again.park(THIRD, {})
        assert engine.open(directory) is again
        assert (again.parked(THIRD), content(again)) == (ParkedChanges({}, []), [(b"a", b"2")])

    def test_that_cannot_be_created_are_reported(self, engine: Engine, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(
            StoreError, match=r"the local copy in .*/file/task cannot be used: .* the setting state_dir"
        ):
            engine.open(str(tmp_path / "file" / "task")).version()

    def test_that_are_missing_cannot_hold_parked_changes(self, copy: LocalCopy, tmp_path: Path) -> None:
        shutil.rmtree(tmp_path / "task", ignore_errors=True)
        with pytest.raises(StoreError, match=r"cannot be used: .*No such file"):
            copy.park(FIRST, {})

    def test_of_an_earlier_boot_are_discarded(self, engine: Engine, tmp_path: Path) -> None:
        """Nothing is ever synced, so after a crash of the operating system nothing in the directory can be trusted."""
        directory = str(tmp_path / "task")
        copy = engine.open(directory)
        copy.apply({"s": [(b"a", b"1")]}, FIRST)
        copy.park(SECOND, {})
        copy.close_view()
        engine.die(directory)
        (tmp_path / "task" / "boot-id").write_text("an earlier boot")
        after = engine.open(directory)
        assert (after.version(), after.parked(SECOND)) == (None, None)
        if engine.outlives:
            assert "before the operating system was restarted" in after.why_empty()

    def test_with_garbage_in_their_files_hold_an_empty_copy(self, engine: Engine, tmp_path: Path) -> None:
        directory = str(tmp_path / "task")
        engine.open(directory).apply({"s": [(b"%d" % n, b"1") for n in range(1000)]}, FIRST)
        engine.die(directory)
        for path in (tmp_path / "task").rglob("*"):
            if path.is_file() and path.name != "boot-id":
                path.write_bytes(b"rubbish" * 4000)
        copy = engine.open(directory)
        assert (copy.version(), content(copy)) == (None, [])
        if engine.outlives:
            assert copy.why_empty() == "the local copy was damaged"
        copy.apply({"s": [(b"a", b"2")]}, SECOND)
        assert content(copy) == [(b"a", b"2")]

    def test_with_truncated_files_hold_an_empty_copy(self, engine: Engine, tmp_path: Path) -> None:
        directory = str(tmp_path / "task")
        engine.open(directory).apply({"s": [(b"%d" % n, b"x" * 99) for n in range(9000)]}, FIRST)
        engine.die(directory)
        for path in (tmp_path / "task").rglob("*"):
            if path.suffix in (".mdb", ".sst"):
                os.truncate(path, path.stat().st_size // 2)
        copy = engine.open(directory)
        assert (copy.version(), content(copy)) == (None, [])


class TestProcesses:
    def run(self, engine: Engine, directory: str, statements: str) -> str:
        code = (
            f"from millstream.drivers.{engine.name} import open_local_copy\n"
            "from millstream.core.ports import Version\n"
            "import os\n"
            f"copy = open_local_copy({directory!r}, 16 << 20)\n"
            f"{statements}"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 9), done.stderr
        return done.stdout

    def test_that_take_turns_see_the_changes_of_each_other(self, engine: Engine, tmp_path: Path) -> None:
        directory = str(tmp_path / "task")
        copy = engine.open(directory)
        copy.apply({"s": [(b"a", b"1")]}, FIRST)
        copy.close_view()
        output = self.run(
            engine,
            directory,
            "print(copy.version())\ncopy.apply({'s': [(b'a', b'2')]}, Version(2, 'bb'))\ncopy.close_view()",
        )
        assert output == (f"{FIRST}\n" if engine.outlives else "None\n")
        assert (copy.version(), content(copy)) == (
            (SECOND, [(b"a", b"2")]) if engine.outlives else (FIRST, [(b"a", b"1")])
        )

    def test_that_die_leave_an_earlier_version_intact(self, engine: Engine, tmp_path: Path) -> None:
        directory = str(tmp_path / "task")
        self.run(
            engine,
            directory,
            "for n in range(1, 4):\n"
            "    copy.apply({s: [(b'%d' % k, b'%d' % n) for k in range(500)] for s in 'stu'}, Version(n, 't'), [f'old/{n}'])\n"
            "    if n == 2: copy.close_view()\n"
            "os._exit(9)",
        )
        copy = engine.open(directory)
        version = copy.version()
        assert (version is not None and version.number >= 2) if engine.outlives else version is None
        number = version.number if version else 0
        for store in "stu":
            assert set(content(copy, store)) == {(b"%d" % k, b"%d" % number) for k in range(500) if number}
