"""``millstream demo`` as a user runs it: its output, its exit code, and that it leaves no process and no file behind.

Every process of a demo inherits an environment variable, so the test finds processes in other sessions and process groups too.
Every file is below one ``TMPDIR``, which must be empty afterwards.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MARK = "MILLSTREAM_TEST_MARK"


class Demo:
    """A demo in a separate process."""

    def __init__(self, tmp_path: Path, *arguments: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.tmp = tmp_path / "tmp"
        self.tmp.mkdir()
        self._output = tmp_path / "output"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millstream", "demo", *arguments],
                cwd=tmp_path,
                env={**os.environ, MARK: self.mark, "TMPDIR": str(self.tmp), **environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self._output.read_text()

    def await_text(self, part: str) -> None:
        deadline = time.monotonic() + 240
        while part not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def left_processes(self) -> list[str]:
        return [str(process) for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            return False

    def left_files(self) -> list[str]:
        return [path.name for path in self.tmp.iterdir()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.kill()


def test_the_demo_counts_words_confirms_the_counts_and_leaves_nothing_behind(
    tmp_path: Path, demos: list[Demo]
) -> None:
    # A setting of the user's own applications must not reach the demo: with this one it could not connect.
    demo = Demo(tmp_path, "--lines", "2000", MILLSTREAM_KAFKA='{"security.protocol": "SSL"}')
    demos.append(demo)

    assert demo.process.wait(280) == 0, demo.text()

    text = demo.text()
    assert re.search(r"✓ Correct: 16,\d{3} words \(538 different\) in 2,000 lines", text)
    assert re.search(r"2,000 of 2,000 lines written, 2,000 counted, lag 0, .*; the \d+, ", text)
    assert re.search(r"starting Spark: done after .* http://127.0.0.1:\d+", text)
    assert "WARN" not in text
    assert (demo.left_processes(), demo.left_files()) == ([], [])


def test_keep_leaves_everything_running_and_prints_commands_that_work(
    tmp_path: Path, demos: list[Demo]
) -> None:
    demo = Demo(tmp_path, "--lines", "500", "--keep")
    demos.append(demo)
    demo.await_text("Press Enter")

    commands = [line.strip() for line in demo.text().splitlines() if " org.apache.kafka.tools." in line]
    consumer, groups, producer = (shlex.split(command) for command in commands)
    read = subprocess.run([*consumer, "--timeout-ms", "5000"], capture_output=True, text=True, check=False)
    assert re.search(r"^the\t\d+$", read.stdout, re.MULTILINE), read
    lag = subprocess.run(groups, capture_output=True, text=True, check=True).stdout
    rows = re.findall(
        r"millstream-demo +lines +\d+ +(\d+) +\d+ +(\d+) ", lag
    )  # a partition without lines has no row
    assert sum(int(current) for current, _ in rows) == 500, lag
    assert {left for _, left in rows} == {"0"}, lag

    subprocess.run(producer, input="millstream\n", text=True, check=True, capture_output=True)
    assert demo.process.stdin is not None
    demo.process.stdin.write(b"\n")
    demo.process.stdin.flush()
    assert demo.process.wait(60) == 0, demo.text()
    assert (demo.left_processes(), demo.left_files()) == ([], [])


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["starting Spark ...", "initialising tasks ...", "counting words ..."])
def test_ctrl_c_stops_everything(tmp_path: Path, demos: list[Demo], moment: str) -> None:
    demo = Demo(tmp_path, "--lines", "1000000")
    demos.append(demo)
    demo.await_text(moment)
    demo.press_ctrl_c()

    assert demo.process.wait(90) == 130, demo.text()
    assert demo.text().endswith("Interrupted. All started processes have been stopped.\n")
    assert (demo.left_processes(), demo.left_files()) == ([], [])


@pytest.mark.soak
def test_a_failure_is_reported_with_the_path_of_the_log(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, MILLSTREAM_KAFKA_JARS=str(tmp_path))
    demos.append(demo)

    assert demo.process.wait(120) == 1, demo.text()
    assert "✗ The demo failed: MILLSTREAM_KAFKA_JARS is" in demo.text()
    assert demo.left_processes() == []
    [log] = demo.left_files()
    assert f"What Spark and the clients wrote is in {demo.tmp / log}" in demo.text()
