"""Restores: in memory and through files, interrupted at any point, with reports of their progress."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.ports import LocalCopy, Version
from millstream.core.state.segments.log import Manifest
from millstream.drivers.spark.executor.restore import RestoreSettings
from millstream.drivers.spark.executor.restore_progress import RestoreProgress
from millstream.drivers.spark.executor.statelog import StateLog
from unit.drivers.engines import COPIES, Engine
from unit.drivers.state import CutOffError, MapState, MortalCopy

KEYS = [b"key-%06d" % n for n in range(20_000)]


class Task:
    """A task with a log, and with copies on several hosts."""

    def __init__(self, engine: Engine, home: Path, memory_bytes: int) -> None:
        self.engine, self.home = engine, home
        self.reports: list[RestoreProgress] = []
        self.state = MapState()
        self.settings = RestoreSettings(memory_bytes, str(home), self.reports.append)
        self.log = StateLog(self.state, TaskId(0, 3), self.settings)
        self.manifest = Manifest()

    def copy(self, name: str) -> LocalCopy:
        return self.engine.open(str(self.home / name))

    def batch(self, changes: dict[bytes, bytes | None], store: str = "s") -> None:
        copy = self.copy("writer")
        self.log.restore(self.manifest, copy)
        copy.close_view()
        self.manifest = self.log.write(self.manifest, {store: list(changes.items())}, copy)

    def content(self, name: str, store: str = "s") -> dict[bytes, bytes]:
        copy = self.copy(name)
        try:
            return dict(copy.open_view().open(store).scan(None, None))
        finally:
            copy.close_view()


@pytest.fixture(params=COPIES.values(), ids=COPIES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine: Engine = request.param
    yield engine
    for directory in list(engine.opened):
        if directory.startswith(str(tmp_path)):
            engine.die(directory)


@pytest.fixture(params=[8 << 20, 1 << 30], ids=["through files", "in memory"])
def task(engine: Engine, tmp_path: Path, request: pytest.FixtureRequest) -> Task:
    task = Task(engine, tmp_path, request.param)
    task.batch(dict.fromkeys(KEYS, b"1" * 90))
    task.batch(dict.fromkeys(KEYS[::7], None))
    task.batch(dict.fromkeys(KEYS[::5], b"3" * 90), "t")
    task.batch(dict.fromkeys(KEYS[::3], b"4" * 90))
    task.batch({b"": b"", b"long" * 20: b"5" * 9000})
    return task


def expected() -> dict[bytes, bytes]:
    content = dict.fromkeys(KEYS, b"1" * 90)
    for key in KEYS[::7]:
        del content[key]
    return {**content, **dict.fromkeys(KEYS[::3], b"4" * 90), b"": b"", b"long" * 20: b"5" * 9000}


def test_a_restore_from_nothing_yields_the_committed_content(task: Task) -> None:
    assert task.log.restore(task.manifest, task.copy("new")) > len(KEYS)
    assert task.copy("new").version() == task.manifest.current
    assert task.content("new") == expected()
    assert task.content("new", "t") == dict.fromkeys(KEYS[::5], b"3" * 90)


def test_a_restore_that_dies_at_any_write_is_completed_by_the_next_one(task: Task) -> None:
    writes = 0
    while True:
        try:
            task.log.restore(task.manifest, MortalCopy(task.copy("mortal"), writes))
            break
        except CutOffError:
            writes += 1
            task.copy("mortal").close_view()
    assert writes >= 2  # the stores, and the version
    assert task.content("mortal") == expected()


def test_a_partly_restored_copy_is_not_mistaken_for_its_older_version(task: Task) -> None:
    """The checkpoint is reset to the older version after some of the later changes were written to the copy."""
    older = task.manifest
    copy = task.copy("behind")
    task.log.restore(older, copy)
    copy.close_view()
    state = dict(task.state.content)
    for number in range(3):
        task.batch(dict.fromkeys(KEYS[number::100], b"later"))
    with pytest.raises(CutOffError):
        task.log.restore(task.manifest, MortalCopy(task.copy("behind"), 1))
    half = task.copy("behind").version()
    assert half is not None
    assert (half.number, half.toward) == (older.version, task.manifest.current.token)
    task.copy("behind").close_view()
    task.state.content = state
    task.log.restore(older, task.copy("behind"))
    assert task.content("behind") == expected()


def test_a_restore_of_a_copy_that_is_behind_fetches_only_missing_changes(task: Task) -> None:
    task.log.restore(task.manifest, task.copy("behind"))
    task.copy("behind").close_view()
    for number in range(3):
        task.batch({b"new-%d" % number: b"x"})
    # a key group may have been merged in the meantime, and then it includes older content
    assert 3 <= task.log.restore(task.manifest, task.copy("behind")) < len(KEYS) / 10
    assert len(task.content("behind")) == len(expected()) + 3


def test_a_copy_catches_up_from_several_parked_versions(tmp_path: Path) -> None:
    """A worker that did not run the task for a while has a copy in memory that is some versions behind."""
    task = Task(COPIES["memory"], tmp_path, 1 << 30)
    for number in range(20):
        task.batch({b"%d" % number: b"x", b"%d" % (number - 1): None})
        if number == 4:
            late = COPIES["memory"].opened.pop(str(tmp_path / "writer"))
            assert late.version().number == 4
    reads = task.state.reads
    assert task.log.restore(task.manifest, late) == 0
    assert (late.version(), task.state.reads) == (task.manifest.current, reads)
    COPIES["memory"].opened[str(tmp_path / "writer")] = late
    assert task.content("writer") == {b"19": b"x"}
    COPIES["memory"].die(str(tmp_path / "writer"))


def test_a_restore_leaves_no_temporary_files(task: Task) -> None:
    before = set(task.home.iterdir())
    task.log.restore(task.manifest, task.copy("new"))
    assert set(task.home.iterdir()) - before == {task.home / "new"}


def test_the_error_of_a_restore_through_files_on_a_full_disk_names_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error used to have no path, so it looked like a full disk of the checkpoint."""
    task = Task(COPIES["lmdb"], tmp_path, 8 << 20)
    task.batch(dict.fromkeys(KEYS, b"1" * 90))
    monkeypatch.setattr(
        tempfile, "TemporaryFile", lambda **_: os.fdopen(os.open("/dev/full", os.O_RDWR), "r+b", buffering=0)
    )
    with pytest.raises(
        StoreError, match=rf"{tmp_path} cannot be used: .*No space left .*Check that the disk"
    ):
        task.log.restore(task.manifest, task.copy("new"))
    monkeypatch.undo()
    task.log.restore(task.manifest, task.copy("new"))
    assert len(task.content("new")) == len(KEYS)


def test_a_restore_is_reported_with_its_reason(tmp_path: Path) -> None:
    task = Task(COPIES["lmdb"], tmp_path, 64 << 20)
    task.batch({b"key-%08d" % n: b"x" for n in range(100_000)})
    task.log.restore(task.manifest, task.copy("new"))
    first, *_, last = task.reports
    assert (first.task, first.store, first.from_version, first.to_version) == ("0_3", "s", None, 1)
    assert (first.why, first.done, first.total) == ("the local copy is missing", 0, 100_000)
    assert (last.finished, last.done) == (True, 100_000)
    task.copy("new").apply({}, Version(1, "foreign"))
    task.log.restore(task.manifest, task.copy("new"))
    assert "to an attempt that was not committed" in task.reports[-1].why


def test_a_restore_from_a_damaged_segment_names_it_and_leaves_no_version(task: Task) -> None:
    sequence = max(key for (key,) in task.state.content)
    (data,) = task.state.content[(sequence,)]
    task.state.content[(sequence,)] = (data[:-1] + bytes([data[-1] ^ 1]),)
    with pytest.raises(StoreError, match=rf"the log is damaged: segment {sequence} of store '[st]', task"):
        task.log.restore(task.manifest, task.copy("new"))
    version = task.copy("new").version()
    assert version is None or version.number < 0
