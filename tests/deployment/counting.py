"""Runs the word count of the examples as a separate program, which tests kill and start again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import millstream as ms
from millstream.testing import EmbeddedKafka

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = ROOT / "examples/wordcount.py"
_WITHIN_S: Final = 240.0
_WORDS: Final = [f"word{n}" for n in range(50)]


class Counting:
    """An exactly-once word count that a test starts and kills."""

    def __init__(self, kafka: EmbeddedKafka, home: Path, checkpoint: str, spark: Mapping[str, str]) -> None:
        """Create the topics and the environment of the program."""
        self.kafka, self.home = kafka, home
        self.state = home / "state"
        for topic in ("lines", "counts"):
            kafka.create_topic(topic, 2)
        self.lines: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", **spark}
        (home / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
        variables = {
            "SPARK_CONF_DIR": str(home),
            "PYTHONPATH": str(Path(ms.__file__).parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "MILLSTREAM_STATE_DIR": str(self.state),
            "MILLSTREAM_PROCESSING_GUARANTEE": "exactly_once",
            "MILLSTREAM_TRANSACTION_TIMEOUT_MS": "20000",
            "MILLSTREAM_MAX_BATCH_RECORDS": "200",
            "MILLSTREAM_STATESTORE_CACHE_MAX_BYTES": "0",
            "MILLSTREAM_SHUFFLE_PARTITIONS": "2",
            "MILLSTREAM_CHECKPOINT_LOCATION": checkpoint,
        }
        self.environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))
        } | variables

    def write(self, lines: int) -> None:
        """Write more lines, of five words each."""
        new = [" ".join(_WORDS[(n * 7 + word * word) % 50] for word in range(5)) for n in range(lines)]
        self.kafka.produce("lines", [(None, line) for line in new])
        self.lines += new

    def start(self, **more: str) -> None:
        """Start the program, with additional environment variables."""
        with (self.home / "program.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), self.kafka.bootstrap_servers],
                env=self.environment | more,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for_results(self, more: int = 1) -> None:
        """Wait until this many more results have been committed."""
        expected = self.results + more
        self._wait(lambda: self.results >= expected, f"{more} more results")

    def wait_for_all(self) -> None:
        """Wait until everything that was written has been counted."""
        words = sum(len(line.split()) for line in self.lines)
        self._wait(lambda: self.results >= words, f"all {words} results")

    @property
    def results(self) -> int:
        """The number of committed results."""
        return len(self.kafka.consume("counts", isolation="read_committed"))

    def kill(self) -> None:
        """Kill the program and its child processes."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def lose_local_state(self) -> None:
        """Delete the local copies, as if the program moved to another host."""
        shutil.rmtree(self.state)

    def stop(self) -> None:
        """Stop the program, and wait for its successful end."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(_WITHIN_S) == 0, self.output()

    def output(self) -> str:
        """Return the end of what the programs have printed."""
        return (self.home / "program.log").read_text(errors="replace")[-6000:]

    def check(self) -> None:
        """Check that the results count each word up one by one, without duplicates, to the count of plain Python."""
        counts: dict[str, list[int]] = {}
        for record in self.kafka.consume("counts", isolation="read_committed"):
            assert record.key is not None
            assert record.value is not None
            counts.setdefault(record.key.decode(), []).append(int.from_bytes(record.value, "big"))
        expected = Counter(word for line in self.lines for word in line.split())
        assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}

    def _wait(self, holds: Callable[[], bool], description: str) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not holds():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                pytest.fail(
                    f"{'the program ended' if ended else 'waited in vain'} before {description}: {self.output()}"
                )
            time.sleep(0.2)


def kill_and_go_on(counting: Counting) -> None:
    """Kill the program twice while it works, and delete its local state before the last start."""
    counting.write(600)
    counting.start()
    counting.wait_for_results()
    counting.kill()
    counting.write(200)
    counting.start()
    counting.wait_for_results(300)
    counting.kill()
    counting.lose_local_state()
    counting.start()
    counting.write(200)
    counting.wait_for_all()
    counting.stop()
    counting.check()
