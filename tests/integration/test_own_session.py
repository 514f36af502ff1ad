"""A Spark session that the user created, in a virtual environment that is not activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream as ms

pytestmark = pytest.mark.spark

_PROGRAM = """
from pyspark.sql import SparkSession, functions as F

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "1").config("spark.ui.enabled", "false")
    .getOrCreate()
)
import millstream as ms

builder = ms.StreamsBuilder()
lines = builder.stream("lines", key=ms.serdes.string, value=ms.serdes.string)
lines.group_by(lambda _, word: word).count().to_stream().to("counts", value=ms.serdes.int64)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
text = rows.select(
    F.lit("lines").alias("topic"), F.lit(None).cast("binary").alias("key"), F.lit("word").cast("binary").alias("value"),
    F.lit(0).alias("partition"), F.col("value").alias("offset"), F.col("timestamp"),
)
counts = ms.spark.transform(builder.build(), {"lines": text}, name="own", state_dir="state")
query = (
    counts.writeStream.format("memory").queryName("words").option("checkpointLocation", "checkpoint")
    .trigger(once=True).start()
)
query.awaitTermination()
print([(row.word, int.from_bytes(row.value, "big")) for row in spark.sql("SELECT string(key) AS word, value FROM words").collect()])
"""


def run_program(
    arguments: list[str], home: Path, environment: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory, without PySpark's variables of this process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=home,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.mark.soak
def test_workers_run_the_python_of_the_program_and_find_its_modules(tmp_path: Path) -> None:
    """A package and a module are next to the program; the module is imported for the first time in a worker.

    The program starts in another directory, so they are not on the workers' path, and the first Python on PATH is another one.
    """
    home, elsewhere, other = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "bin" / "python3"
    (home / "shop").mkdir(parents=True)
    elsewhere.mkdir()
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'this is another Python' >&2\nexit 9\n")
    other.chmod(0o755)
    (home / "shop" / "__init__.py").touch()
    (home / "shop" / "words.py").write_text(
        "def to_word(key, word):\n    from shop_late import shout\n    return shout(word)\n"
    )
    (home / "shop_late.py").write_text("def shout(word): return word.upper()\n")
    program = _PROGRAM.replace(
        "import millstream as ms\n", "import millstream as ms\nfrom shop.words import to_word\n"
    )
    program = program.replace("lambda _, word: word", "to_word")
    (home / "main.py").write_text(program)
    environment = {
        "PATH": f"{other.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(ms.__file__).parents[1]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ended = run_program([str(home / "main.py")], elsewhere, environment, timeout_s=280)
    assert (ended.returncode, ended.stdout) == (0, "[('WORD', 3)]\n"), ended.stderr[-3000:]
