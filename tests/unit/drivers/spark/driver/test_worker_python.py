"""The Python of workers: it imports the installed PySpark, and the modules that this program can import, whichever paths Spark prepends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from millstream.drivers.private import process_directory
from millstream.drivers.spark.driver import worker_python as module
from millstream.drivers.spark.driver.worker_python import worker_python

ARCHIVE = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)


def printed(program: str, *arguments: str) -> list[str]:
    ended = subprocess.run(
        [worker_python(), "-c", f"import sys, pyspark; {program}", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ARCHIVE}:/an/other"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines()


def test_workers_import_the_installed_package_and_not_the_archive() -> None:
    assert ARCHIVE.exists()
    assert printed("print(pyspark.__file__)") == [pyspark.__file__]


def test_workers_use_this_interpreter_and_its_path_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    odd = str(tmp_path / "it's a path")
    monkeypatch.setattr(sys, "path", [odd, *sys.path])
    module._script.cache_clear()
    try:
        executable, first, *rest = printed(
            "print(sys.executable, *sys.path[1:], *sys.argv[1:], sep='\\n')", "a b"
        )
    finally:
        module._script.cache_clear()
    assert (executable, first) == (sys.executable, odd)
    assert rest.index("/an/other") > rest.index(str(Path(pyspark.__file__).parent.parent))
    assert rest[-1] == "a b"


def test_the_interpreter_that_the_user_sets_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert worker_python() == "/opt/python"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert Path(worker_python()).parent == process_directory()


def test_another_spark_home_uses_its_own_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python() == sys.executable
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert worker_python() != sys.executable


def test_no_script_is_used_where_scripts_cannot_be_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    module._script.cache_clear()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).parent != process_directory())
    try:
        assert worker_python() == sys.executable
    finally:
        module._script.cache_clear()
