"""A damaged checkpoint is reported file by file; what a crash leaves is no damage."""

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


def found(root: Path) -> list[str]:
    return findings(look(LocalFiles(root)))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint").run(*range(NEWEST + 1))


def test_the_table_is_about_the_newest_micro_batch(checkpoint: Checkpoint) -> None:
    assert newest(checkpoint.root, "offsets") == newest(checkpoint.root, "commits") == NEWEST


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case.name)
def test_a_damage_is_reported(checkpoint: Checkpoint, case: Damage) -> None:
    case.do(checkpoint.root)
    message = "; ".join(found(checkpoint.root))
    assert re.search(case.pattern(NEWEST), message), message


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case.name)
def test_what_a_crash_leaves_is_no_damage(checkpoint: Checkpoint, case: Damage) -> None:
    case.do(checkpoint.root)
    assert found(checkpoint.root) == []


class TestCrashes:
    """States of a directory between two steps of Spark."""

    def test_before_anything_was_planned(self, tmp_path: Path) -> None:
        assert found(tmp_path / "nowhere") == []
        assert found(Checkpoint(tmp_path / "empty").root) == []

    @pytest.mark.parametrize("batch", [0, 1, 7])
    def test_in_a_micro_batch(self, tmp_path: Path, batch: int) -> None:
        checkpoint = Checkpoint(tmp_path / "checkpoint").run(*range(batch))
        checkpoint.plan(batch)
        assert found(checkpoint.root) == []  # planned
        checkpoint.work(batch)
        (checkpoint.root / f"state/0/0/{batch + 1}.changelog").unlink()
        assert found(checkpoint.root) == []  # one of two partitions has written its state
        checkpoint.work(batch)
        assert found(checkpoint.root) == []  # not yet complete
        checkpoint.commit(batch)
        assert found(checkpoint.root) == []

    def test_snapshots_only_as_without_changelogs(self, tmp_path: Path) -> None:
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        for batch in range(4):
            checkpoint.plan(batch)
            checkpoint.work(batch, snapshot=True, changes=False)
            checkpoint.commit(batch)
        assert found(checkpoint.root) == []
        checkpoint.run(4, 5)  # and on with changes only
        assert found(checkpoint.root) == []

    def test_a_rescale_that_was_cut_off(self, checkpoint: Checkpoint) -> None:
        checkpoint.plan(NEWEST + 1, partitions=4)
        assert found(checkpoint.root) == []
        for partition in range(4):
            other = checkpoint.root / f"state/0/{partition}"
            other.mkdir(exist_ok=True)
            (other / f"{NEWEST + 2}.changelog").touch()
        assert found(checkpoint.root) == []

    def test_a_rescale_to_fewer_partitions_leaves_the_others_behind(self, checkpoint: Checkpoint) -> None:
        checkpoint.partitions = 1
        checkpoint.plan(NEWEST + 1)
        checkpoint.work(NEWEST + 1, snapshot=True)
        checkpoint.commit(NEWEST + 1)
        assert found(checkpoint.root) == []

    def test_files_with_ids_as_in_the_second_format_of_checkpoints(self, checkpoint: Checkpoint) -> None:
        for file in [*checkpoint.root.glob("state/0/*/[0-9]*")]:
            file.rename(file.with_name(f"{file.stem}_0b8c2f7e-11aa{file.suffix}"))
        (checkpoint.root / "commits" / str(NEWEST)).write_text('v2\n{"stateUniqueIds":{}}')
        (checkpoint.root / f"commits/.{NEWEST}.crc").unlink()
        assert found(checkpoint.root) == []


def test_a_large_state_is_compared_up_to_a_limit(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(case for case in DAMAGES if case.name == "changes flipped").do(checkpoint.root)
    assert len(found(checkpoint.root)) == 1
    monkeypatch.setattr(damage, "_MOST_BYTES", 1_000)
    assert found(checkpoint.root) == []


def test_a_query_of_two_sources_is_not_an_application(checkpoint: Checkpoint) -> None:
    file = checkpoint.root / f"offsets/{NEWEST}"
    file.write_text(file.read_text() + "\n{}")
    (message,) = found(checkpoint.root)
    assert "it has version 'v1' and 2 sources, but 'v1' and one source are expected" in message


def test_what_is_read_in_spite_of_it_is_refused_too(checkpoint: Checkpoint) -> None:
    (checkpoint.root / f"offsets/{NEWEST}").write_bytes(b"")
    with pytest.raises(CheckpointError, match="offsets/7 cannot be read: it is empty"):
        progress_of(LocalFiles(checkpoint.root))
