"""The log of a task in Spark's state, with a dict instead of Spark's map state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.ports import LocalCopy, StoreChange, Version
from millstream.core.state.segments.log import Manifest
from millstream.drivers.spark.executor.statelog import StateLog
from unit.drivers.engines import COPIES, Engine
from unit.drivers.state import MapState


@pytest.fixture
def state() -> MapState:
    return MapState()


@pytest.fixture
def log(state: MapState) -> StateLog:
    return StateLog(state, TaskId(0, 3))


@pytest.fixture(params=COPIES.values(), ids=COPIES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine: Engine = request.param
    yield engine
    for name in ("copy", "other"):
        engine.die(str(tmp_path / name))


@pytest.fixture
def copy(engine: Engine, tmp_path: Path) -> LocalCopy:
    return engine.open(str(tmp_path / "copy"))


@pytest.fixture
def other(engine: Engine, tmp_path: Path) -> LocalCopy:
    """The copy of another host: nothing is parked there."""
    return engine.open(str(tmp_path / "other"))


def content(copy: LocalCopy, store: str = "s") -> dict[bytes, bytes]:
    reader = copy.open_view().open(store)
    try:
        return dict(reader.scan(None, None))
    finally:
        copy.close_view()


def batch(
    log: StateLog, manifest: Manifest, copy: LocalCopy, *changes: StoreChange, store: str = "s"
) -> Manifest:
    """Run a batch: restore, then write."""
    log.restore(manifest, copy)
    return log.write(manifest, {store: list(changes)}, copy)


def test_nothing_is_restored_before_the_first_commit(log: StateLog, copy: LocalCopy) -> None:
    assert log.restore(Manifest(), copy) == 0
    assert copy.version() is None


def test_changes_reach_the_copy_in_the_next_micro_batch(log: StateLog, copy: LocalCopy) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    assert (copy.version(), content(copy)) == (None, {})
    assert log.restore(manifest, copy) == 0  # from the parked changes, not from the log
    assert (copy.version(), content(copy)) == (manifest.current, {b"a": b"1"})


def test_parked_changes_are_restored_without_reading_the_log(
    log: StateLog, copy: LocalCopy, state: MapState
) -> None:
    manifest = Manifest()
    for number in range(5):
        manifest = batch(log, manifest, copy, (b"a", b"%d" % number))
        state.reads = 0
        log.restore(manifest, copy)
        assert (content(copy), state.reads) == ({b"a": b"%d" % number}, 0)


def test_a_micro_batch_without_changes_creates_no_version(
    log: StateLog, copy: LocalCopy, state: MapState
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    assert log.write(manifest, {}, copy) is manifest
    assert len(state.content) == 1


def test_a_copy_on_another_host_is_restored_from_the_log(
    log: StateLog, copy: LocalCopy, other: LocalCopy
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"), (b"b", b"2"))
    manifest = batch(log, manifest, copy, (b"a", None), (b"c", b"3"))
    assert log.restore(manifest, other) == 4
    assert content(other) == {b"b": b"2", b"c": b"3"}
    assert log.restore(manifest, other) == 0


def test_a_copy_that_is_behind_restores_only_missing_changes(
    log: StateLog, copy: LocalCopy, other: LocalCopy
) -> None:
    many: list[StoreChange] = [(b"b%d" % number, b"2") for number in range(10)]
    manifest = batch(log, Manifest(), copy, (b"a", b"1"), *many)
    log.restore(manifest, other)
    manifest = batch(log, manifest, copy, (b"a", None))
    manifest = batch(log, manifest, copy, (b"c", b"3"))
    assert log.restore(manifest, other) == 2
    assert content(other) == {**dict(many), b"c": b"3"}


def test_the_changes_of_a_failed_attempt_are_not_applied(log: StateLog, copy: LocalCopy) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    log.restore(manifest, copy)
    log.write(
        manifest, {"s": [(b"a", b"lost")]}, copy
    )  # Spark drops the attempt's state, its parked changes stay
    committed = log.write(manifest, {"s": [(b"a", b"2")]}, copy)
    log.restore(committed, copy)
    assert content(copy) == {b"a": b"2"}


def test_parked_changes_of_a_failed_attempt_do_not_replace_those_of_another_host(
    log: StateLog, copy: LocalCopy, other: LocalCopy
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    log.restore(manifest, copy)
    log.restore(manifest, other)
    log.write(manifest, {"s": [(b"a", b"lost")]}, copy)
    committed = log.write(manifest, {"s": [(b"b", b"2")]}, other)
    assert log.restore(committed, copy) == 1
    assert content(copy) == {b"a": b"1", b"b": b"2"}


def test_unreadable_parked_changes_are_fetched_from_the_log(
    log: StateLog, copy: LocalCopy, tmp_path: Path
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    (file,) = (tmp_path / "copy").glob("parked-*")
    file.write_bytes(b"rubbish")
    assert log.restore(manifest, copy) == 1
    assert content(copy) == {b"a": b"1"}


def test_a_copy_drops_rows_deleted_before_the_content_moved_to_lower_key_groups(
    log: StateLog, copy: LocalCopy, other: LocalCopy
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"), (b"b", b"2"))
    log.restore(manifest, other)
    for key in (b"a", b"b"):
        manifest = batch(log, manifest, copy, (key, None))
    many: list[StoreChange] = [(b"c%d" % number, b"3") for number in range(10_000)]
    manifest = batch(log, manifest, copy, *many)
    log.restore(manifest, other)
    assert content(other) == dict(many)


def test_a_copy_of_an_earlier_checkpoint_is_discarded(log: StateLog, copy: LocalCopy) -> None:
    copy.apply({"s": [(b"old", b"1")]}, Version(5, "earlier"))
    assert log.restore(Manifest(), copy) == 0
    assert (copy.version(), content(copy)) == (None, {})


def test_a_copy_that_is_ahead_is_discarded(log: StateLog, copy: LocalCopy) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    later = batch(log, manifest, copy, (b"b", b"2"))
    log.restore(later, copy)
    log.restore(manifest, copy)  # the checkpoint was restored from a backup
    assert content(copy) == {b"a": b"1"}


def test_an_interrupted_restore_starts_again(log: StateLog, copy: LocalCopy, other: LocalCopy) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"), (b"b", b"2"))
    other.apply({"s": [(b"a", b"1"), (b"ghost", b"9")]}, Version(-1, "restoring"))
    assert log.restore(manifest, other) == 2
    assert content(other) == {b"a": b"1", b"b": b"2"}


def test_compaction_removes_the_segments_that_it_replaces(
    log: StateLog, copy: LocalCopy, state: MapState
) -> None:
    manifest = Manifest()
    for number in range(100):
        manifest = batch(log, manifest, copy, (b"a", b"%d" % number))
    assert len(state.content) <= 3
    assert {key for (key,) in state.content} == {
        s.sequence for group in manifest.segments.values() for s in group
    }


def test_a_removed_store_leaves_nothing_behind(
    log: StateLog, copy: LocalCopy, other: LocalCopy, state: MapState
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"), store="gone")
    manifest = batch(log, manifest, copy, (b"b", b"2"), store="kept")
    manifest = log.forget_stores(manifest, ["kept"])
    assert len(state.content) == 1
    manifest = batch(log, manifest, copy, (b"c", b"3"), store="kept")
    for host in (copy, other):
        log.restore(manifest, host)
        assert (content(host, "kept"), content(host, "gone")) == ({b"b": b"2", b"c": b"3"}, {})


def test_stores_that_are_removed_one_after_the_other_leave_nothing_behind(
    log: StateLog, copy: LocalCopy
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"), store="first")
    manifest = batch(log, manifest, copy, (b"b", b"2"), store="second")
    for kept in (["second"], []):
        manifest = log.forget_stores(manifest, kept)
        log.restore(manifest, copy)
    assert (content(copy, "first"), content(copy, "second")) == ({}, {})


def test_removing_a_store_rebuilds_a_copy_once(log: StateLog, copy: LocalCopy) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"), store="gone")
    manifest = batch(log, manifest, copy, (b"b", b"2"), store="kept")
    manifest = log.forget_stores(manifest, ["kept"])
    assert log.restore(manifest, copy) == 1
    manifest = batch(log, manifest, copy, (b"c", b"3"), store="kept")
    assert log.restore(manifest, copy) == 0  # the changes are parked beside a copy that is one behind


def test_the_error_of_a_missing_segment_names_its_store_and_task(
    log: StateLog, copy: LocalCopy, other: LocalCopy, state: MapState
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    state.content.clear()
    with pytest.raises(
        StoreError,
        match=r"the log is damaged: segment 0 of store 's', task 0_3 is missing from the checkpoint",
    ):
        log.restore(manifest, other)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data[:4] + b"x" * 20, lambda data: b""]
)
def test_the_error_of_a_damaged_segment_names_its_store_and_task(
    log: StateLog, copy: LocalCopy, other: LocalCopy, state: MapState, damage: Any
) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"1"))
    state.content = {key: (damage(data),) for key, (data,) in state.content.items()}
    with pytest.raises(StoreError, match=r"the log is damaged: segment 0 of store 's', task 0_3"):
        log.restore(manifest, other)


def test_values_are_compressed(log: StateLog, copy: LocalCopy, other: LocalCopy, state: MapState) -> None:
    manifest = batch(log, Manifest(), copy, (b"a", b"x" * 100_000))
    live = sum(segment.size for group in manifest.segments.values() for segment in group)
    assert live == sum(len(data) for (data,) in state.content.values()) < 1_000
    log.restore(manifest, other)
    assert content(other) == {b"a": b"x" * 100_000}


def test_the_content_of_a_changelog_topic_is_written_while_it_is_read(log: StateLog, state: MapState) -> None:
    """The values may be so large that they do not fit into memory together."""
    written: list[int] = []

    def read() -> Iterator[dict[str, list[StoreChange]]]:
        for number in range(200):
            written.append(len(state.content))
            yield {"s": [(b"%d" % number, bytes(1 << 20))]}

    manifest = log.load(read())
    assert written[100] > 0
    assert sum(segment.changes for group in manifest.segments.values() for segment in group) == 200
