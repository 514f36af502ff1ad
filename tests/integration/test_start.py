"""Start of Millstream's own Spark session: the package of its workers and its temporary files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from millstream.drivers.private import remove_abandoned
from millstream.drivers.spark.driver.spark_session import use_this_python

pytestmark = pytest.mark.spark


def test_workers_import_the_installed_package(spark: SparkSession) -> None:
    """From an archive, each process would compile the modules again."""

    def package(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    use_this_python()  # as an application does
    assert spark.sparkContext.parallelize([0], 1).map(package).collect() == [pyspark.__file__]


_LOADS_A_LIBRARY = """
from millstream.drivers.private import process_directory
from millstream.drivers.spark.driver.spark_session import session_for

jvm = session_for("libraries", "local[1]", {"spark.ui.enabled": "false"})._jvm
jvm.org.rocksdb.RocksDB.loadLibrary()
print(process_directory(), jvm.java.lang.System.getProperty("java.io.tmpdir"), flush=True)
input()
"""


def test_the_files_of_a_killed_jvm_are_removed_by_the_next_program(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    program = subprocess.Popen(
        [sys.executable, "-c", _LOADS_A_LIBRARY],
        cwd=tmp_path,
        env=clean,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    private, temporary = map(Path, program.stdout.readline().split())
    processes = [*psutil.Process(program.pid).children(recursive=True), program]
    for process in processes:
        process.kill()
    program.communicate()
    assert list(temporary.glob("librocksdbjni*"))
    assert temporary.is_relative_to(private)
    os.utime(private, (0, 0))
    remove_abandoned()
    assert not private.exists()
