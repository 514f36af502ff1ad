"""An application whose checkpoint is in an object store. Only `make deployments` runs this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedKafka

from .counting import Counting, kill_and_go_on
from .objects import object_store

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    """A word count whose checkpoint is in the object store."""
    with EmbeddedKafka(partitions=2) as broker, object_store(tmp_path) as (bucket, settings):
        program = Counting(broker, tmp_path, f"{bucket}/word-count", {"spark.master": "local[2]", **settings})
        yield program
        program.kill()


def test_a_checkpoint_in_an_object_store_survives_kills(counting: Counting) -> None:
    kill_and_go_on(counting)
    counting.check()
