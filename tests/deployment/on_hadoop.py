"""An application whose checkpoint is on HDFS. Only `make deployments` runs this file, which downloads 110 MB of jars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedKafka

from .counting import Counting, kill_and_go_on
from .hadoop import hdfs

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture
def broker() -> Iterator[EmbeddedKafka]:
    """A new broker for each program, because the application id is always the same."""
    with EmbeddedKafka(partitions=2) as instance:
        yield instance


@pytest.fixture
def counting(broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Counting]:
    """A word count whose checkpoint is on HDFS."""
    with hdfs(tmp_path) as files:
        instance = Counting(broker, tmp_path, f"{files}/checkpoints/word-count", {"spark.master": "local[2]"})
        yield instance
        instance.kill()


def test_a_checkpoint_on_hdfs_survives_kills_and_moves(counting: Counting) -> None:
    kill_and_go_on(counting)
    counting.write(100)
    counting.start(MILLSTREAM_SHUFFLE_PARTITIONS="4")  # moves the state
    counting.wait_for_all()
    counting.stop()
    counting.check()
