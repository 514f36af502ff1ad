"""Errors of Spark while a command works on a checkpoint."""

from __future__ import annotations

import pytest
from pyspark.errors import IllegalArgumentException

from millstream.core.model.errors import SparkRuntimeError
from millstream.edge.cli.spark_sessions import Sessions
from millstream.edge.settings.settings import Settings

SETTINGS = Settings(bootstrap_servers="unused:1", checkpoint_location="hdfs://x/shop")


def test_a_checkpoint_that_spark_cannot_reach_is_a_one_line_error() -> None:
    unreachable = IllegalArgumentException("java.net.UnknownHostException: x\n\tat org.apache.hadoop")
    with pytest.raises(SparkRuntimeError) as caught, Sessions("shop", SETTINGS):
        raise unreachable
    assert str(caught.value) == (
        "Spark cannot work on the checkpoint hdfs://x/shop: java.net.UnknownHostException: x. Correct --checkpoint-location, or the settings "
        "with which Spark reaches it (spark={...})"
    )
    assert caught.value.__cause__ is unreachable


def test_other_errors_are_not_converted() -> None:
    with pytest.raises(KeyError), Sessions("shop", SETTINGS):
        raise KeyError("x")
