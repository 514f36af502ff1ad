"""An application on YARN whose checkpoint is on HDFS. Only `make deployments` runs this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.testing import EmbeddedKafka

from .counting import Counting, kill_and_go_on
from .hadoop import JARS, yarn

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1800)]
_EXECUTORS = {
    "spark.master": "yarn",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.yarn.am.memory": "512m",
    "spark.yarn.jars": f"local:{JARS}/*",
    "spark.executorEnv.PYTHONPATH": str(Path(ms.__file__).parents[1]),
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    """A word count with two executors on YARN, and its checkpoint on HDFS."""
    with EmbeddedKafka(partitions=2) as broker, yarn(tmp_path) as (files, conf):
        program = Counting(broker, tmp_path, f"{files}/checkpoints/word-count", _EXECUTORS)
        program.environment["HADOOP_CONF_DIR"] = str(conf)
        yield program
        program.kill()


def test_an_application_on_yarn_survives_kills(counting: Counting) -> None:
    kill_and_go_on(counting)
    counting.check()
    assert "on yarn" in counting.output()
