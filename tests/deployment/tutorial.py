"""Runs the commands of the tutorial about clusters. Only `make deployments` runs this file."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from docs.markdown import ROOT, blocks_of
from millstream.testing import EmbeddedKafka
from shells import started

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(530)]
PAGE = ROOT / "docs/tutorial/from-my-laptop-to-the-cluster.md"
LINES = ["To be, or not to be", "that is the question", "whether 'tis nobler in the mind"]
_WITHIN_S = 480


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_tutorial_counts_on_the_laptop_and_on_a_cluster(tmp_path: Path) -> None:
    blocks = blocks_of(PAGE)
    for block in blocks:
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    with EmbeddedKafka(partitions=2) as kafka:
        for topic in ("lines", "counts"):
            kafka.create_topic(topic, 2)
        kafka.produce("lines", [(None, line) for line in LINES])
        commands = "\n".join(
            block.text for block in blocks if block.info in (("bash", "laptop"), ("bash", "cluster"))
        )
        script = commands.replace("localhost:9092", kafka.bootstrap_servers).replace("7077", str(free_port()))
        run(script, tmp_path)
        results = Counter((record.key, record.value) for record in kafka.consume("counts"))
    words = Counter(word for line in LINES for word in re.findall("[a-z']+", line.lower()))
    expected = Counter({(word.encode(), count.to_bytes(8, "big")): 2 for word, count in words.items()})
    assert results == expected


def run(script: str, directory: Path) -> None:
    """Run commands in a shell, and kill the processes that they leave running."""
    source = Path(sys.executable).parent
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))
    }
    environment |= {"PATH": f"{source}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    with (directory / "output").open("w+") as output:
        shell = started(script, directory, environment, output)
        try:
            code = shell.wait(_WITHIN_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        output.seek(0)
        logs = "".join(log.read_text()[-1500:] for log in directory.glob("*.log"))
        assert code == 0, output.read()[-4000:] + logs
