"""A session that the user has made, in an environment that is not activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

_PROGRAM = """
from pyspark.sql import SparkSession, functions as F

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "1").config("spark.ui.enabled", "false")
    .getOrCreate()
)
import penstock as ps

builder = ps.StreamsBuilder()
lines = builder.stream("lines", key=ps.serdes.string, value=ps.serdes.string)
lines.group_by(lambda _, word: word).count().to_stream().to("counts", value=ps.serdes.int64)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
text = rows.select(
    F.lit("lines").alias("topic"), F.lit(None).cast("binary").alias("key"), F.lit("word").cast("binary").alias("value"),
    F.lit(0).alias("partition"), F.col("value").alias("offset"), F.col("timestamp"),
)
counts = ps.spark.transform(builder.build(), {"lines": text}, name="own", state_dir="state")
query = (
    counts.writeStream.format("memory").queryName("words").option("checkpointLocation", "checkpoint")
    .trigger(once=True).start()
)
query.awaitTermination()
print([(row.word, int.from_bytes(row.value, "big")) for row in spark.sql("SELECT string(key) AS word, value FROM words").collect()])
"""


def test_workers_are_of_the_programs_python(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'this is another Python' >&2\nexit 9\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment |= {"PATH": f"{other.parent}:{environment['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (ended.returncode, ended.stdout) == (0, "[('word', 3)]\n"), ended.stderr[-3000:]
