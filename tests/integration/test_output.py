"""What a program shows in its terminal, run as a user would run it: without a word about logging."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from millstream.testing import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_PROGRAM: Final = """
import logging
import sys
import millstream as ms

logging.getLogger("adder").setLevel(logging.INFO)

def parsed(text):
    logging.getLogger("adder.parsing").info("parsing %s", text)
    return int(text)

builder = ms.StreamsBuilder()
numbers = builder.stream("numbers", key=ms.serdes.string, value=ms.serdes.string)
numbers.map_values(parsed).group_by_key().count(store="counts").to_stream().to("counts", value=ms.serdes.int64)
ms.Application("adder", builder.build(), bootstrap_servers=sys.argv[1], master="local[1]", trigger_interval_ms="PT0.1S").run(
    until="end"
)
"""

_LINES: Final = [
    r"adder: reading the topics from 127\.0\.0\.1:\d+",
    r"adder: starting Spark \(local\[1\]\); its output goes to /.*/adder/millstream\.log",
    r"adder: Spark 4\.\d+\.\d+ runs on local\[1\], UI at http://127\.0\.0\.1:\d+",
    r"adder: sub-topology 0 \(1 task\): reads numbers; keeps counts; writes counts",
    r"adder: starting the query; the first micro-batch initialises the tasks",
    r"adder: running after \d+\.\d s",
    r"(?:adder: \d+ records read, .* records/s, lag \d+, micro-batch \d+\.\d\d s.*)?",
    r"KSTREAM-MAPVALUES-0000000001 failed in stage 'process' of task 0_0 .* offset 1 .*: invalid literal for int.*",
    r"(?:adder: \d+ records read, .* records/s, lag \d+, micro-batch \d+\.\d\d s.*)?",
    r"at least \d+ more like: KSTREAM-MAPVALUES-0000000001 failed in stage 'process' of task 0_0 at topic.*\.\.\.",
    r"adder: stopped after \d+\.\d s: 30 records read, 1 sent, 10 dropped, lag 0",
]


def _run(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the program on thirty records, ten of which are no numbers."""
    with EmbeddedKafka(partitions=1) as kafka:
        for topic in ("numbers", "counts"):
            kafka.create_topic(topic)
        kafka.produce("numbers", [("k", f"no number {n}" if n % 3 == 1 else str(n)) for n in range(30)])
        return subprocess.run(
            [sys.executable, "-c", _PROGRAM, kafka.bootstrap_servers],
            cwd=tmp_path,
            env={**os.environ, "MILLSTREAM_STATE_DIR": str(tmp_path), **settings},
            capture_output=True,
            text=True,
            timeout=240,
        )


def _matches(lines: list[str], shapes: list[str]) -> bool:
    """Return whether lines match these patterns, of which some are optional, in any number."""
    if not shapes:
        return not lines
    optional = shapes[0].endswith(")?")
    if lines and re.fullmatch(rf"\d\d:\d\d:\d\d {shapes[0]}", lines[0]):
        return _matches(lines[1:], shapes if optional else shapes[1:])
    return optional and _matches(lines, shapes[1:])


def test_a_program_says_how_it_is_line_by_line(tmp_path: Path) -> None:
    ended = _run(tmp_path, MILLSTREAM_ON_PROCESS_ERROR="skip")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert _matches(ended.stderr.splitlines(), _LINES), ended.stderr
    log = (tmp_path / "adder" / "millstream.log").read_text()
    assert "INFO millstream.application: Application adder (consumer group adder)" in log
    parsing = re.findall(
        r"^[-\d]+ [:,\d]+ INFO adder\.parsing \[pid \d+, task 0_0\]: parsing (\d+)$", log, re.MULTILINE
    )
    assert [int(number) for number in parsing] == [
        n for n in range(30) if n % 3 != 1
    ]  # logged in a worker of Spark


def test_an_error_is_one_message_and_every_line_is_json_if_that_is_wanted(tmp_path: Path) -> None:
    ended = _run(tmp_path, MILLSTREAM_OUTPUT="json")
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert ended.returncode == 1
    assert [line.get("event") for line in lines[:5]] == [
        "starting",
        "spark-starts",
        "spark-runs",
        "plan",
        "query-starts",
    ]
    (error,) = [line for line in lines if line["level"] == "error"]
    assert error is lines[-1]
    assert (error["error"], "partition 0, offset 1 " in error["message"]) == ("ProcessingError", True), error
    log = (tmp_path / "adder" / "millstream.log").read_text()
    assert "Traceback (most recent call last):" in log
    logged = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    parsing = [line for line in logged if line["logger"] == "adder.parsing"]
    assert (parsing[0]["level"], parsing[0]["message"], parsing[0]["task"]) == ("info", "parsing 0", "0_0")
