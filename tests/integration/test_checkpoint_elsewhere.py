"""A checkpoint on a Hadoop file system, which Millstream reads and deletes through Spark's JVM.

The file system is ViewFs, which comes with Hadoop and shows a local directory under its own URL. `make deployments` tests HDFS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms

from .helpers import Apps, committed_records, values_by_key

pytestmark = [pytest.mark.broker, pytest.mark.spark]
_MOUNT = "fs.viewfs.mounttable.elsewhere.link./checkpoints"


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A local directory that is `viewfs://elsewhere/checkpoints` for Hadoop."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    hadoop.set(_MOUNT, directory.as_uri())
    yield directory
    hadoop.unset(_MOUNT)


def test_an_application_continues_moves_its_state_and_refuses_a_damaged_checkpoint(
    apps: Apps, elsewhere: Path
) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    builder = ms.StreamsBuilder()
    counts = builder.stream(source).group_by_key().count(store="counts")
    counts.to_stream().to(sink, value=ms.serdes.int64)
    topology = builder.build()
    settings = {
        "checkpoint_location": "viewfs://elsewhere/checkpoints/counts",
        "processing_guarantee": "exactly_once",
    }
    for partitions in (1, 2):  # the second start continues, and moves the state
        apps.kafka.produce(source, [("a", "x"), ("b", "x"), ("a", "y")])
        apps.run(topology, shuffle_partitions=partitions, **settings)
    found = values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)
    assert found == {"a": [1, 2, 3, 4], "b": [1, 2]}
    assert not (apps.home / apps.id / "checkpoint").exists()

    newest = max((elsewhere / "counts/offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    with pytest.raises(
        ms.errors.CheckpointError, match=f"viewfs://elsewhere.* offsets/{newest.name} is missing"
    ):
        apps.run(topology, **settings)
