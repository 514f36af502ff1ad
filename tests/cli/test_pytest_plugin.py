"""The pytest plugin, in separate runs of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

UNUSED = """
import sys

def test_nothing_is_imported():
    assert "pytest_millstream" in sys.modules
    assert not [name for name in sys.modules if name.split(".")[0] in ("millstream", "pyspark", "confluent_kafka")]
"""
USED = """
import millstream as ms

def topology():
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    return builder

DRIVERS = []

def test_a_driver(millstream_driver):
    driver = millstream_driver(topology(), commit_every=2)
    DRIVERS.append(driver)
    driver.pipe_table("| key | value |\\n| a | x |\\n| a | x |", "in")
    driver.expect("out", "| key | value |\\n| a | 2 |")
    DRIVERS.append(millstream_driver(topology().build()))

def test_drivers_are_closed():
    assert [driver._closed for driver in DRIVERS] == [True, True]

def test_a_difference(millstream_driver):
    driver = millstream_driver(topology())
    driver.pipe("in", "a", "x")
    driver.expect("out", "| key | value |\\n| a | 2 |")
"""
CLOSED_WITH_AN_ERROR = """
import millstream as ms

class Fails(ms.Processor):
    def process(self, record):
        pass
    def close(self):
        raise OSError("it stays open")

DRIVERS = []

def test_two_drivers(millstream_driver):
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    DRIVERS.append(millstream_driver(builder))
    failing = ms.StreamsBuilder()
    failing.stream("in").process(Fails)
    DRIVERS.append(millstream_driver(failing))

def test_both_are_closed():
    assert [driver._closed for driver in DRIVERS] == [True, True]
"""
ON_SPARK = """
import millstream as ms

def test_an_application(millstream_kafka, millstream_spark, tmp_path):
    for topic in ("in", "out"):
        millstream_kafka.create_topic(topic)
    millstream_kafka.produce("in", [("a", "x"), ("b", "y")])
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("out")
    servers = millstream_kafka.bootstrap_servers
    ms.Application("plugin", builder.build(), bootstrap_servers=servers, state_dir=tmp_path).run(until="end")
    assert sorted(record.value for record in millstream_kafka.consume("out")) == [b"X", b"Y"]
"""


def run(folder: Path, text: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "pytest_millstream",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "-q",
        ".",
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["project"]["entry-points"]["pytest11"].values()
    assert (ROOT / "src" / f"{module}.py").is_file()
    assert f"src/{module}.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_an_unused_plugin_does_not_import_millstream(tmp_path: Path) -> None:
    code, output = run(tmp_path, UNUSED)
    assert code == 0, output


def test_drivers_are_closed_and_differences_are_shown_as_tables(tmp_path: Path) -> None:
    code, output = run(tmp_path, USED)
    assert code == 1, output
    assert "1 failed, 2 passed" in output
    assert "- | a   | 2     |" in output
    assert "+ | a   | 1     |" in output


def test_a_driver_that_fails_to_close_does_not_keep_others_open(tmp_path: Path) -> None:
    code, output = run(tmp_path, CLOSED_WITH_AN_ERROR)
    assert code == 1, output
    assert "2 passed, 1 error" in output
    assert "it stays open" in output


@pytest.mark.broker
@pytest.mark.spark
def test_an_application_runs_on_the_broker_and_the_session_of_the_plugin(tmp_path: Path) -> None:
    code, output = run(tmp_path, ON_SPARK)
    assert code == 0, output
