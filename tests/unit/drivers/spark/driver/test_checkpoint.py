"""Reading the files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.core.model.errors import SparkRuntimeError
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, LocalFiles, files_of, progress_of


class Checkpoint:
    """A directory as Spark writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("offsets", "commits"):
            (root / directory).mkdir(parents=True)

    def plan(self, batch: int, partitions: int = 4, version: str = "v1") -> None:
        conf = json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": str(partitions)}})
        text = f"{version}\n{conf}\n{json.dumps({'tick': batch})}"
        (self.root / "offsets" / str(batch)).write_text(text)
        (self.root / "offsets" / f".{batch}.crc").touch()

    def commit(self, batch: int) -> None:
        (self.root / "commits" / str(batch)).write_text("v1\n{}")

    def progress(self) -> CheckpointProgress | None:
        return progress_of(LocalFiles(self.root))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


def test_a_checkpoint_without_micro_batches_has_no_progress(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert checkpoint.progress() is progress_of(LocalFiles(tmp_path / "nowhere")) is None


def test_numbers_of_micro_batches_are_compared_as_numbers(checkpoint: Checkpoint) -> None:
    for batch in (8, 9, 10):
        checkpoint.plan(batch)
        checkpoint.commit(batch)
    assert checkpoint.progress() == CheckpointProgress(
        10, True, False, 4, {"tick": 10}, {"tick": 10}, 10, {"tick": 9}
    )


def test_an_interrupted_micro_batch_is_recognized(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0)
    assert checkpoint.progress() == CheckpointProgress(0, False, False, 4, {"tick": 0}, {})
    checkpoint.commit(0)
    checkpoint.plan(1)
    assert checkpoint.progress() == CheckpointProgress(
        1, False, False, 4, {"tick": 1}, {"tick": 0}, 0, {"tick": 0}
    )


def test_an_interrupted_rescale_is_recognized(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0)
    checkpoint.commit(0)
    checkpoint.plan(1, partitions=8)
    checkpoint_progress = checkpoint.progress()
    assert checkpoint_progress is not None
    assert (checkpoint_progress.rescaling, checkpoint_progress.shuffle_partitions) == (True, 8)
    checkpoint.commit(1)
    checkpoint_progress = checkpoint.progress()
    assert checkpoint_progress is not None
    assert not checkpoint_progress.rescaling


def test_a_log_of_another_query_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, version="v9")
    with pytest.raises(SparkRuntimeError, match=r"version 'v9' and 1 sources"):
        checkpoint.progress()


def test_a_file_url_needs_no_session(tmp_path: Path) -> None:
    directory = tmp_path / "with space"
    directory.mkdir()
    files = files_of(directory.as_uri(), lambda: pytest.fail("a session was started"))
    assert files == LocalFiles(directory)
    files.delete()
    assert not files.exists()
    files.delete()
