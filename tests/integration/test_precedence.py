"""Precedence of Spark's settings: our defaults < the user's settings of Spark < the user's settings of Millstream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from millstream.drivers.class_archive import ClassArchive
from millstream.drivers.java import look_for_java
from millstream.drivers.private import make_private

pytestmark = pytest.mark.spark

_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
_PROGRAM = """
import json, sys
from millstream.drivers.spark.driver.spark_session import session_for
from millstream.edge.settings.settings_loading import settings_from

settings = settings_from({"bootstrap_servers": "nowhere:1", **json.loads(sys.argv[1])})
session = session_for("word-count", settings.master, settings.spark)
context, jvm = session.sparkContext, session._jvm
machine = jvm.java.lang.management.ManagementFactory.getPlatformMXBean(
    jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
)
conf = dict(context.getConf().getAll())
print("FOUND " + json.dumps({
    "master": context.master,
    "name": context.appName,
    "heap": jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20,
    "jit": machine.getVMOption("TieredStopAtLevel").getValue(),
    "archive": machine.getVMOption("SharedArchiveFile").getValue(),
    "notes": machine.getVMOption("DumpLoadedClassList").getValue(),
    "level": str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel()),
    "compress": conf["spark.shuffle.compress"],
    "progress": conf["spark.ui.showConsoleProgress"],
    "host": conf["spark.driver.host"],
    "ui": context.uiWebUrl,
}))
session.stop()
"""
_QUIET_UI = {"spark.ui.port": "0"}


def _run_program(
    tmp_path: Path, start: list[str], environment: dict[str, str], **settings: Any
) -> dict[str, Any]:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    clean |= {"PYSPARK_PYTHON": sys.executable, **environment}
    ended = subprocess.run(
        [*start, str(program), json.dumps(settings)],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, (ended.stdout + ended.stderr)[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("FOUND "))
    return found


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A broken class archive of Spark."""
    monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MILLSTREAM_CLASS_ARCHIVES", raising=False)
    java = look_for_java()[0]
    assert java is not None
    archive = ClassArchive("spark", java, Path(pyspark.__file__).resolve().parent / "jars").file
    make_private(archive.parent)
    archive.write_text("broken")
    return archive


def test_settings_that_are_not_set_have_defaults(tmp_path: Path, archive: Path) -> None:
    found = _run_program(tmp_path, [sys.executable], {}, spark=_QUIET_UI)
    heap, ui = found.pop("heap"), found.pop("ui")
    assert found.pop("notes") in (None, "")
    assert found == {
        "archive": str(archive),
        "master": "local[*]",
        "name": "word-count",
        "jit": "1",
        "level": "FATAL",
        "compress": "false",
        "progress": "false",
        "host": "127.0.0.1",
    }
    assert 1900 < heap <= 2048
    assert "//127.0.0.1:" in ui or "//localhost:" in ui


@pytest.mark.soak
def test_options_of_spark_submit_override_our_defaults(tmp_path: Path) -> None:
    options = ["--master", "local[1]", "--driver-memory", "600m", "--name", "mine"]
    for setting in (
        "spark.log.level=ERROR",
        "spark.shuffle.compress=true",
        "spark.ui.port=0",
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=3",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.driver.host=localhost",
    ):
        options += ["--conf", setting]
    found = _run_program(tmp_path, [_SUBMIT, *options], {"SPARK_LOCAL_IP": "127.0.0.1"})
    assert found["heap"] <= 600
    assert {k: found[k] for k in ("master", "name", "jit", "level", "compress", "host")} == {
        "master": "local[1]",
        "name": "mine",
        "jit": "3",
        "level": "ERROR",
        "compress": "true",
        "host": "localhost",
    }


@pytest.mark.soak
def test_the_spark_defaults_file_overrides_our_defaults(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.master  spark://nowhere:7077\n"
        "spark.master  local[1]\nspark.driver.memory=600m\nspark.log.level ERROR\nspark.ui.port 0\n"
        "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=3 -XX:SharedArchiveFile=/nowhere.jsa\n"
    )
    found = _run_program(tmp_path, [sys.executable], {"SPARK_CONF_DIR": str(tmp_path)})
    assert found["heap"] <= 600
    assert {k: found[k] for k in ("master", "name", "jit", "archive", "level")} == {
        "master": "local[1]",
        "name": "word-count",
        "jit": "3",
        "archive": "/nowhere.jsa",
        "level": "ERROR",
    }


def test_settings_of_the_application_override_those_of_spark(tmp_path: Path, archive: Path) -> None:
    archive.unlink()
    arguments = "--master local[1] --driver-memory 600m --conf spark.log.level=ERROR --conf spark.ui.port=0 pyspark-shell"
    found = _run_program(
        tmp_path,
        [sys.executable],
        {"PYSPARK_SUBMIT_ARGS": arguments},
        master="local[3]",
        spark={"spark.log.level": "WARN"},
    )
    assert found["heap"] <= 600
    assert (found["master"], found["level"]) == ("local[3]", "WARN")
    assert found["notes"].endswith(".classes")  # the list of classes for an archive, because there is none
