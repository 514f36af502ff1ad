"""State of micro-batches that were not completed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.drivers.spark.driver.checkpoint import LocalFiles, remove_abandoned

OLDER = ["1.zip", "3.changelog", ".3.changelog.crc", "3_5f3a.changelog"]
ABANDONED = [
    "4.changelog",
    ".4.changelog.crc",
    "4.zip",
    ".4.changelog.966a3207.TID2.tmp",
    "..4.changelog.966a3207.TID2.tmp.crc",
    "4_5f3a-1.changelog",
]


def checkpoint(root: Path, commits: list[int]) -> LocalFiles:
    for directory, names in {
        "offsets": ["0", "1", "2", "3"],
        "commits": [str(batch) for batch in commits],
        "state/0/0": [*OLDER, *ABANDONED, "44.changelog"],
        "state/0/1": ABANDONED[:1],
        "state/0/_metadata": ["v2"],
    }.items():
        (root / directory).mkdir(parents=True)
        for name in names:
            (root / directory / name).touch()
    return LocalFiles(root)


def test_state_of_an_incomplete_micro_batch_is_removed(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, [0, 1, 2])
    removed = remove_abandoned(files)
    assert set(removed) == {*(f"state/0/0/{name}" for name in ABANDONED), "state/0/1/4.changelog"}
    assert set(files.names("state/0/0")) == {*OLDER, "44.changelog"}


@pytest.mark.parametrize("commits", [[0, 1, 2, 3], [2, 3]])
def test_state_of_a_complete_micro_batch_is_kept(tmp_path: Path, commits: list[int]) -> None:
    assert remove_abandoned(checkpoint(tmp_path, commits)) == []


def test_nothing_is_removed_before_the_first_micro_batch(tmp_path: Path) -> None:
    assert remove_abandoned(LocalFiles(tmp_path)) == []
