"""A damaged checkpoint is reported file by file. Files that a crash leaves are not damage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.core.model.errors import CheckpointError
from millstream.drivers.spark.driver import damage
from millstream.drivers.spark.driver.checkpoint import LocalFiles, progress_of
from millstream.drivers.spark.driver.damage import findings, look

from .checkpoints import DAMAGES, HARMLESS, Checkpoint, Damage, newest

NEWEST = 7


def reported_damage(root: Path) -> list[str]:
    return findings(look(LocalFiles(root)))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint").run(*range(NEWEST + 1))


def test_the_test_checkpoint_ends_with_a_complete_micro_batch(checkpoint: Checkpoint) -> None:
    assert newest(checkpoint.root, "offsets") == newest(checkpoint.root, "commits") == NEWEST


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case.name)
def test_damage_is_reported(checkpoint: Checkpoint, case: Damage) -> None:
    case.do(checkpoint.root)
    message = "; ".join(reported_damage(checkpoint.root))
    assert re.search(case.pattern(NEWEST), message), message


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case.name)
def test_files_that_a_crash_leaves_are_not_damage(checkpoint: Checkpoint, case: Damage) -> None:
    case.do(checkpoint.root)
    assert reported_damage(checkpoint.root) == []


class TestCrashes:
    """States of a checkpoint between two writes of Spark."""

    def test_before_the_first_micro_batch_are_not_damage(self, tmp_path: Path) -> None:
        assert reported_damage(tmp_path / "nowhere") == []
        assert reported_damage(Checkpoint(tmp_path / "empty").root) == []

    @pytest.mark.parametrize("batch", [0, 1, 7])
    def test_during_a_micro_batch_are_not_damage(self, tmp_path: Path, batch: int) -> None:
        checkpoint = Checkpoint(tmp_path / "checkpoint").run(*range(batch))
        checkpoint.plan(batch)
        assert reported_damage(checkpoint.root) == []  # planned
        checkpoint.work(batch)
        (checkpoint.root / f"state/0/0/{batch + 1}.changelog").unlink()
        assert reported_damage(checkpoint.root) == []  # one of two partitions has written its state
        checkpoint.work(batch)
        assert reported_damage(checkpoint.root) == []  # not yet complete
        checkpoint.commit(batch)
        assert reported_damage(checkpoint.root) == []

    def test_snapshots_without_changelogs_are_not_damage(self, tmp_path: Path) -> None:
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        for batch in range(4):
            checkpoint.plan(batch)
            checkpoint.work(batch, snapshot=True, changes=False)
            checkpoint.commit(batch)
        assert reported_damage(checkpoint.root) == []
        checkpoint.run(4, 5)  # continues with changelogs only
        assert reported_damage(checkpoint.root) == []

    def test_during_a_rescale_are_not_damage(self, checkpoint: Checkpoint) -> None:
        checkpoint.plan(NEWEST + 1, partitions=4)
        assert reported_damage(checkpoint.root) == []
        for partition in range(4):
            other = checkpoint.root / f"state/0/{partition}"
            other.mkdir(exist_ok=True)
            (other / f"{NEWEST + 2}.changelog").touch()
        assert reported_damage(checkpoint.root) == []

    def test_partitions_that_remain_after_a_rescale_are_not_damage(self, checkpoint: Checkpoint) -> None:
        checkpoint.partitions = 1
        checkpoint.plan(NEWEST + 1)
        checkpoint.work(NEWEST + 1, snapshot=True)
        checkpoint.commit(NEWEST + 1)
        assert reported_damage(checkpoint.root) == []

    def test_files_with_ids_of_the_second_checkpoint_format_are_not_damage(
        self, checkpoint: Checkpoint
    ) -> None:
        for file in [*checkpoint.root.glob("state/0/*/[0-9]*")]:
            file.rename(file.with_name(f"{file.stem}_0b8c2f7e-11aa{file.suffix}"))
        (checkpoint.root / "commits" / str(NEWEST)).write_text('v2\n{"stateUniqueIds":{}}')
        (checkpoint.root / f"commits/.{NEWEST}.crc").unlink()
        assert reported_damage(checkpoint.root) == []


def test_checksums_of_a_large_state_are_compared_only_up_to_a_limit(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(case for case in DAMAGES if case.name == "changes flipped").do(checkpoint.root)
    assert len(reported_damage(checkpoint.root)) == 1
    monkeypatch.setattr(damage, "_MOST_BYTES", 1_000)
    assert reported_damage(checkpoint.root) == []


def test_a_checkpoint_of_a_query_with_two_sources_is_reported(checkpoint: Checkpoint) -> None:
    file = checkpoint.root / f"offsets/{NEWEST}"
    file.write_text(file.read_text() + "\n{}")
    (message,) = reported_damage(checkpoint.root)
    assert "it has version 'v1' and 2 sources, but 'v1' and one source are expected" in message


def test_the_progress_of_a_damaged_checkpoint_cannot_be_read(checkpoint: Checkpoint) -> None:
    (checkpoint.root / f"offsets/{NEWEST}").write_bytes(b"")
    with pytest.raises(CheckpointError, match="offsets/7 cannot be read: it is empty"):
        progress_of(LocalFiles(checkpoint.root))
