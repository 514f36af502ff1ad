"""A topology on Spark Connect: the program and Spark are two processes, each with its own modules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import millstream as ms

pytest.importorskip("grpc", reason="the extra dev brings pyspark[connect]")
pytest.importorskip("grpc_status")
pytestmark = pytest.mark.spark

_SERVER: Final = """
import sys
from pyspark.sql import SparkSession

settings = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.python.daemon.module": "millstream.edge.daemon",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print(getattr(service, "MODULE$").localPort(), flush=True)
sys.stdin.read()
session.stop()
"""

_CLIENT: Final = """
import sys
from pyspark.sql import SparkSession, functions as F
import millstream as ms
from shop_words import to_word

spark = SparkSession.builder.remote(f"sc://127.0.0.1:{sys.argv[1]}").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "1")

def frame():
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).option("numPartitions", 1).load()
    return rows.select(
        F.lit(None).cast("binary").alias("key"), F.lit("word").cast("binary").alias("value"),
        F.lit(0).alias("partition"), F.col("value").alias("offset"), F.col("timestamp"),
    )

builder = ms.StreamsBuilder()
more = builder.stream("more", key=ms.serdes.string, value=ms.serdes.string)
lines = builder.stream("lines", key=ms.serdes.string, value=ms.serdes.string)
lines.merge(more).group_by(to_word).count().to_stream().to("counts", value=ms.serdes.int64)
topology = builder.build()
for refused in (
    lambda: ms.Application("app", topology, bootstrap_servers="127.0.0.1:1").start(),
    lambda: ms.spark.read_kafka(spark, "lines", bootstrap_servers="127.0.0.1:1"),
):
    try:
        refused()
    except ms.MillstreamError as error:
        print(type(error).__name__, "ms.spark.transform, which works there" in str(error))
counts = ms.spark.transform(topology, {"lines": frame(), "more": frame()}, name="connected", state_dir="state")
query = (
    counts.writeStream.format("memory").queryName("words").option("checkpointLocation", sys.argv[2])
    .trigger(once=True).start()
)
query.awaitTermination()
words = spark.sql("SELECT string(key) AS word, max(conv(hex(value), 16, 10)) AS n FROM words GROUP BY word")
print([tuple(row) for row in words.collect()])
spark.stop()
"""


def _environment(tmp_path: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    path = os.pathsep.join(
        [str(Path(ms.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    return {**inherited, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    """Start a server in its own directory; yield its port."""
    home, log = tmp_path / "server", tmp_path / "server.log"
    home.mkdir()
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            cwd=home,
            env=_environment(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        bound_port = server.stdout.readline().strip()
        assert bound_port, log.read_text()[-3000:]
        yield bound_port
        server.stdin.close()
        server.wait(120)


@pytest.mark.soak
def test_transform_works_on_spark_connect_and_other_entry_points_are_refused(
    port: str, tmp_path: Path
) -> None:
    home = tmp_path / "client"
    home.mkdir()
    home.joinpath("shop_words.py").write_text("def to_word(key, word): return word.upper()\n")
    home.joinpath("main.py").write_text(_CLIENT)
    ended = subprocess.run(
        [sys.executable, "main.py", port, str(tmp_path / "checkpoint")],
        cwd=home,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=250,
    )
    expected = ["SparkRuntimeError True", "SparkRuntimeError True", "[('WORD', '6')]"]
    assert ended.stdout.splitlines() == expected, (
        ended.stderr[-3000:] + (tmp_path / "server.log").read_text()[-3000:]
    )
