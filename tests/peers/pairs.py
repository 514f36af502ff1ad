"""Runs both programs of each page for users of another library on a broker. `make peers` runs this file.

A page contains the program of the other library in a block with a file name (``py totals.py``, ``java WordCount.java``), the commands
that run it (``bash peer``), and the same topology in Millstream, with the code that replaces the test driver in an application. Both
programs read the records that the page pipes into the driver, and their results must be equal: for each key, the same values in the
same order.

If the commands install packages, the page has a separate virtual environment in ``build/peers``, which later runs reuse.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import millstream as ms
from docs.markdown import ROOT
from docs.peer_pages import PAGES, PeerPage
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.testing import EmbeddedKafka
from millstream.testing._java import find_java
from millstream.testing.kafka import KAFKA_VERSION, Outgoing, resolve_jars
from shells import started

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1800)]
ENVIRONMENTS: Final = ROOT / "build" / "peers"
_COMMANDS: Final = Path(sys.executable).parent
_WITHIN_S: Final = 600.0
_GRACE_S: Final = 30.0
_SPARK: Final = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True)
class Flow:
    """The input records of each topic, the topic of the results, and the number of results."""

    inputs: Mapping[str, list[Outgoing]]
    sink: str
    results: int


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_both_programs_have_the_same_results(path: Path, tmp_path: Path) -> None:
    page, theirs, ours = PeerPage(path), tmp_path / "theirs", tmp_path / "ours"
    flow = recorded(page.program, tmp_path)
    for directory in (theirs, ours):
        directory.mkdir()
    environment = environment_of(commands_for(page), theirs)
    if page.file.endswith(".java"):
        if shutil.which("javac", path=environment["PATH"]) is None:
            pytest.skip("this Java has no compiler, which the program for Kafka Streams needs")
        (theirs / "libs").symlink_to(kafka_streams())
    found = results_of(theirs / page.file, page.peer, page.commands, flow, environment)
    environment = environment_of(_COMMANDS, ours)
    expected = results_of(ours / "program.py", page.application, "python program.py", flow, environment)
    assert found == expected


def recorded(program: str, directory: Path) -> Flow:
    """Run a program that uses a test driver; return the records that it pipes into the driver and the number that it reads."""
    inputs: dict[str, list[Outgoing]] = {}
    read: dict[str, int] = {}

    class RecordingDriver(ms.testing.TopologyTestDriver):
        def _collect(self, records: Iterable[tuple[TopicPartition, Records]]) -> None:
            kept = list(records)
            for partition, batch in kept:
                for key, value, time_ms in zip(batch.keys, batch.values, batch.timestamps):
                    record = (key, value, time_ms) if time_ms else (key, value)
                    inputs.setdefault(partition.topic, []).append(record)
            super()._collect(kept)

        def read(self, topic: str) -> list[ms.Record[Any, Any]]:
            results = super().read(topic)
            read[topic] = read.get(topic, 0) + len(results)
            return results

    (directory / "driven.py").write_text(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ms.testing, "TopologyTestDriver", RecordingDriver)
        runpy.run_path(str(directory / "driven.py"), run_name="driven")
    ((sink, results),) = read.items()
    return Flow(inputs, sink, results)


def commands_for(page: PeerPage) -> Path:
    """Return the directory of the Python for the commands of a page: a separate one if they install packages."""
    if "pip install" not in page.commands:
        return _COMMANDS
    home = ENVIRONMENTS / page.name
    if not (home / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    return home / "bin"


def kafka_streams() -> Path:
    """Return the directory with the jars of Kafka Streams."""
    return resolve_jars(
        f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", folder=f"kafka-streams-{KAFKA_VERSION}"
    )


def environment_of(commands: Path, directory: Path) -> dict[str, str]:
    """Return environment variables with which a program finds these commands first and keeps its state in the directory."""
    (directory / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in _SPARK.items()))
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "PYTHONPATH", "SPARK_"))
    }
    return given | {
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={directory}",  # Kafka Streams keeps its state there
        "MILLSTREAM_STATE_DIR": str(directory / "state"),
        "PATH": os.pathsep.join([str(commands), str(Path(find_java()).parent), os.environ["PATH"]]),
        "SPARK_CONF_DIR": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "WEB_PORT": str(free_port()),  # for a Faust worker
    }


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def results_of(
    file: Path, program: str, commands: str, flow: Flow, environment: Mapping[str, str]
) -> dict[bytes | None, list[bytes | None]]:
    """Run a program on a new broker until it has written all results.

    Args:
        file: The file for the program. Its directory is the working directory.
        program: The program.
        commands: The commands that run it.
        flow: Its input records and the number of its results.
        environment: Environment variables.

    Returns:
        The values of each key, in order.
    """
    with EmbeddedKafka(partitions=1) as kafka:
        file.write_text(program.replace("localhost:9092", kafka.bootstrap_servers))
        for topic in (*flow.inputs, flow.sink):
            kafka.create_topic(topic, 1)
        for topic, records in flow.inputs.items():
            kafka.produce(topic, records)
        with running(commands, file.parent, environment) as (shell, log):
            deadline = time.monotonic() + _WITHIN_S
            while kafka.end_offsets(flow.sink)[0] < flow.results:
                if shell.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"{file.name} has too few results: {log.read_text(errors='replace')[-4000:]}")
                time.sleep(0.5)  # a broker does not announce new records
        found: dict[bytes | None, list[bytes | None]] = {}
        for record in kafka.consume(flow.sink):
            found.setdefault(record.key, []).append(record.value)
        return found


@contextmanager
def running(
    commands: str, directory: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run commands in the background; yield their shell and log. At the end, stop all processes that they have started."""
    log = directory / "log"
    with log.open("wb") as output:
        shell = started(commands, directory, environment, output)
    try:
        yield shell, log
    finally:
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(shell.pid, ending)
                shell.wait(_GRACE_S)
