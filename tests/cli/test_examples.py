"""The programs in ``examples/`` work when they run as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from millstream.testing import EmbeddedKafka

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = ["to be or not to be", "that is the question", "to die to sleep"]


def test_the_example_test_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "wordcount_test.py"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.broker
@pytest.mark.spark
def test_word_count_counts_until_it_is_interrupted(tmp_path: Path) -> None:
    with EmbeddedKafka() as kafka:
        for topic in ("lines", "counts"):
            kafka.create_topic(topic)
        kafka.produce("lines", [(None, line) for line in LINES])
        environment = {**os.environ, "MILLSTREAM_STATE_DIR": str(tmp_path / "state")}
        with (tmp_path / "output").open("w+") as output:
            program = subprocess.Popen(
                [sys.executable, str(EXAMPLES / "wordcount.py"), kafka.bootstrap_servers],
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                expected = Counter(word for line in LINES for word in line.split())
                counts = await_counts(kafka, expected, program)
            finally:
                program.send_signal(signal.SIGINT)
                code = program.wait(60)
            output.seek(0)
            assert (counts, code) == (expected, 0), output.read()


def await_counts(
    kafka: EmbeddedKafka, expected: Counter[str], program: subprocess.Popen[bytes]
) -> Counter[str]:
    deadline = time.monotonic() + 200
    while True:
        records = kafka.consume("counts")
        counts = Counter({record.key.decode(): int.from_bytes(record.value, "big") for record in records})
        if counts == expected or time.monotonic() > deadline or program.poll() is not None:
            return counts
        time.sleep(0.2)
