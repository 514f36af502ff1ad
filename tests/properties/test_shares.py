"""Shares: the tasks that divide a task have the content of its log, and continue with it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.ports import StoreChange
from millstream.core.state.division.entry_keys import EntryKeys
from millstream.core.state.division.shares import Division
from millstream.core.state.segments import compaction
from millstream.core.state.segments.log import Manifest, catch_up, decode_manifest
from millstream.drivers import segments as codec
from millstream.drivers.spark.driver.state_division import DividedTask, SharesOfTask
from millstream.drivers.spark.executor.statelog import StateLog, unpacked
from millstream.drivers.spark.share_files import ShareWriter, read_share
from unit.drivers.state import MapState

Batch = dict[str, list[StoreChange]]

keys = st.integers(0, 60).map(lambda number: b"%d" % number)
changes = st.dictionaries(keys, st.none() | st.binary(max_size=3), max_size=30).map(
    lambda by_key: list(by_key.items())
)
batches = st.lists(
    st.dictionaries(st.sampled_from(["counts", "windows/7"]), changes, max_size=2), max_size=25
)
divisions = st.sampled_from([(Division(1, 16), 0), (Division(1, 64), 3)])


class CopyWithoutParking:
    """A local copy that parks no changes."""

    def park(self, *_: object) -> None: ...


class Log:
    """The log of a task in Spark's state."""

    def __init__(self, state: MapState, manifest: Manifest) -> None:
        self.state, self.manifest = state, manifest
        self._log = StateLog(state, TaskId(0, 0))

    def write(self, batch: Mapping[str, list[StoreChange]]) -> None:
        changed = {store: items for store, items in batch.items() if items}
        self.manifest = self._log.write(self.manifest, changed, CopyWithoutParking())

    def content(self) -> dict[tuple[str, bytes], bytes]:
        found: dict[tuple[str, bytes], bytes | None] = {}
        for (store, _), segment in catch_up(self.manifest, None) or ():
            data = unpacked(self.state.content[(segment.sequence,)][0], "a segment")
            found.update({(store, key): value for key, value in codec.decode(data, "a segment")})
        return {key: value for key, value in found.items() if value is not None}


def divided(log: Log, task: DividedTask, directory: Path) -> dict[TaskId, Log]:
    """Divide a log by share files; each share replaces a log of another task."""
    tasks = task.division.tasks(task.id)
    writers = {new: ShareWriter(directory, new) for new in tasks}
    with ThreadPoolExecutor(2) as threads:
        shares = SharesOfTask(task, log.manifest, {"task": None}, writers, threads)
        for (sequence,), (data,) in log.state.content.items():
            shares.add(sequence, data)
        shares.finish("token")
    found = {}
    for new in tasks:
        writers[new].finish()
        state = MapState()
        other = Log(state, Manifest())
        other.write({"counts": [(b"of another task", b"")]})
        encoded = StateLog(state, new).take_share(other.manifest, read_share(directory, new))
        manifest, memory = decode_manifest(encoded)
        assert memory == {"task": None}
        found[new] = Log(state, manifest)
    return found


@given(before=batches, after=batches, division=divisions, largest=st.sampled_from([2, 32_768]))
def test_shares_have_the_content_of_the_task_and_continue_with_it(
    before: list[Batch], after: list[Batch], division: tuple[Division, int], largest: int
) -> None:
    with patch.object(compaction, "LARGEST_CHANGES", largest):  # with 2, key groups are split
        check_shares(before, after, division)


def check_shares(before: list[Batch], after: list[Batch], division: tuple[Division, int]) -> None:
    whole = Log(MapState(), Manifest())
    for batch in before:
        whole.write(batch)
    key_functions = {store: lambda entry: entry for store in ("counts", "windows")}
    task = DividedTask(TaskId(0, division[1]), division[0], EntryKeys(key_functions))
    with TemporaryDirectory() as directory:
        logs = divided(whole, task, Path(directory))
    for batch in [{}, *after]:
        whole.write(batch)
        for store, items in batch.items():
            for new, share in division[0].shares(task.id, items, lambda entry: entry).items():
                logs[new].write({store: share})
        parts = [log.content() for log in logs.values()]
        assert sum(map(len, parts)) == len(whole.content())
        assert {key: value for part in parts for key, value in part.items()} == whole.content()
    for log in logs.values():
        in_use = {(segment.sequence,) for group in log.manifest.segments.values() for segment in group}
        assert log.state.content.keys() == in_use


def test_a_lost_or_damaged_share_is_detected(tmp_path: Path) -> None:
    task = TaskId(0, 3)
    with pytest.raises(StoreError, match="0_3 is missing or damaged"):
        list(read_share(tmp_path, task))
    writer = ShareWriter(tmp_path, task)
    writer.add(7, b"a segment")
    with pytest.raises(StoreError, match="missing or damaged"):
        list(read_share(tmp_path, task))
    writer.finish()
    assert list(read_share(tmp_path, task)) == [(7, b"a segment")]
    data = bytearray((tmp_path / "0_3").read_bytes())
    data[18] ^= 1
    (tmp_path / "0_3").write_bytes(bytes(data))
    with pytest.raises(StoreError, match="missing or damaged"):
        list(read_share(tmp_path, task))


def test_every_flipped_bit_in_a_share_is_detected(tmp_path: Path) -> None:
    writer, path = ShareWriter(tmp_path, TaskId(0, 3)), tmp_path / "0_3"
    writer.add(7, b"a segment")
    writer.finish()
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(StoreError, match="missing or damaged"):
            list(read_share(tmp_path, TaskId(0, 3)))


def test_a_segment_that_is_missing_from_the_checkpoint_is_detected(tmp_path: Path) -> None:
    log = Log(MapState(), Manifest())
    log.write({"counts": [(b"a", b"1")]})
    log.state.content.clear()
    task = DividedTask(TaskId(0, 0), Division(1, 16), EntryKeys({"counts": lambda entry: entry}))
    with pytest.raises(StoreError, match="1 segments of task 0_0 are missing"):
        divided(log, task, tmp_path)
