"""When a start divides state among key ranges, and when it must not."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import CheckpointError, IncompatibleTopologyError
from millstream.core.runtime.batch_plan import BatchPlan, DividedState, Initialization, batch_id
from millstream.core.topology.analysis.ranges import divided_plan
from millstream.core.topology.evolution import ComparedPart, Remembered
from millstream.core.topology.layout import default_grouper, lay_out
from millstream.core.topology.routing import routing_of
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, LocalFiles
from millstream.edge.checkpoint import key_range_division
from millstream.edge.checkpoint.continuity import Continuity
from millstream.edge.checkpoint.key_range_division import KeyRangeDivision


class RemoteFiles(LocalFiles):
    """A checkpoint that is not on a disk."""

    def local(self, path: str) -> None:  # type: ignore[override]  # `Files` allows None, which no local checkpoint returns
        return None


def division(root: Path, progress: CheckpointProgress | None) -> KeyRangeDivision:
    """Return the division of an application without key ranges that is started with four workers."""
    builder = ms.StreamsBuilder()
    builder.stream("words").group_by_key().count(store="counts")
    plan = builder.build().plan("app")
    before = Remembered(
        plan.store_fingerprints(),
        parts={0: ComparedPart(("words",), ("counts",), 2)},
        routing=routing_of(plan, lay_out(plan, {"words": 2})),
    )
    continuity = Continuity(divided_plan(plan, 4), before, MappingProxyType({}))
    layout = continuity.laid_out({"words": 2}, default_grouper)
    return KeyRangeDivision(progress, continuity, layout, LocalFiles(root))


COMPLETE = CheckpointProgress(7, True, False, 4, {}, {}, 7)


def test_state_is_divided_only_if_the_last_micro_batch_is_complete(tmp_path: Path) -> None:
    assert not division(tmp_path, None).needed
    assert not division(tmp_path, CheckpointProgress(0, False, False, 4, {}, {}, -1)).needed
    complete = division(tmp_path, COMPLETE)
    assert complete.needed
    complete.check()
    with pytest.raises(IncompatibleTopologyError, match="its last micro-batch, 8, was interrupted"):
        division(tmp_path, CheckpointProgress(8, False, False, 4, {}, {}, 7)).check()


def test_a_checkpoint_on_a_remote_file_system_is_not_divided(tmp_path: Path) -> None:
    elsewhere = replace(division(tmp_path, COMPLETE), files=RemoteFiles(tmp_path))
    with pytest.raises(CheckpointError, match="only if the checkpoint is in a directory of this host"):
        elsewhere.check()
    elsewhere.remove_old_shares()


def test_shares_stay_until_their_micro_batch_is_complete(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / "divided" / name).mkdir(parents=True)
    begin = Initialization(divided=DividedState("new", (0,)))
    assert Initialization.decode(begin.encode()) == begin
    planned = BatchPlan(batch_id({}), Remembered(), initialization=begin).to_json()
    division(tmp_path, CheckpointProgress(8, False, False, 4, planned, {}, 7)).remove_old_shares()
    assert [path.name for path in (tmp_path / "divided").iterdir()] == ["new"]
    division(tmp_path, CheckpointProgress(8, True, False, 4, planned, planned, 8)).remove_old_shares()
    assert not list((tmp_path / "divided").iterdir())


def test_a_full_disk_is_named_and_shares_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start used to end with an OSError without a path, and half of the shares stayed on the full disk."""

    def fill(_session: object, _checkpoint: object, directory: Path, *_: object) -> DividedState:
        (directory / "half").mkdir(parents=True)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(key_range_division, "divide", fill)
    session: Any = None
    with pytest.raises(CheckpointError, match=rf"{tmp_path / 'divided'}.*No space left on device.* MiB free"):
        division(tmp_path, COMPLETE).divide(session, "unused")
    assert not list((tmp_path / "divided").iterdir())
