"""Terminal output of a program that is run as by a user, without any configuration of logging."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

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
servers, name, source, sink, *on = sys.argv[1:]
numbers = builder.stream(source, key=ms.serdes.string, value=ms.serdes.string)
numbers.map_values(parsed).group_by_key().count(store="counts").to_stream().to(sink, value=ms.serdes.int64)
ms.Application(name, builder.build(), bootstrap_servers=servers, master="local[1]", trigger_interval_ms="PT0.1S").run(
    until=None if on else "end"
)
"""


class Adder(NamedTuple):
    """The program, with its own application id, topics and state directory."""

    kafka: EmbeddedKafka
    home: Path
    name: str

    @property
    def source(self) -> str:
        return f"{self.name}-in"

    @property
    def sink(self) -> str:
        return f"{self.name}-out"

    @property
    def log(self) -> str:
        return (self.home / self.name / "millstream.log").read_text()

    def command(self, *more: str) -> list[str]:
        return [
            sys.executable,
            "-c",
            _PROGRAM,
            self.kafka.bootstrap_servers,
            self.name,
            self.source,
            self.sink,
            *more,
        ]

    def environment(self, **settings: str) -> dict[str, str]:
        return {**os.environ, "MILLSTREAM_STATE_DIR": str(self.home), **settings}

    def lines(self) -> list[str]:
        """Return the patterns of the expected lines."""
        name = self.name
        progress = rf"(?:{name}: \d+ records read, .* records/s, lag \d+, micro-batch \d+\.\d\d s.*)?"
        failed = "KSTREAM-MAPVALUES-0000000001 failed in stage 'process' of task 0_0"
        return [
            rf"{name}: reading the topics from 127\.0\.0\.1:\d+",
            rf"{name}: starting Spark \(local\[1\]\); its output goes to /.*/{name}/millstream\.log",
            rf"{name}: Spark 4\.\d+\.\d+ runs on local\[1\], UI at http://127\.0\.0\.1:\d+",
            rf"{name}: sub-topology 0 \(1 task\): reads {self.source}; keeps counts; writes {self.sink}",
            rf"{name}: starting the query; the first micro-batch initialises the tasks",
            rf"{name}: running after \d+\.\d s",
            progress,
            rf"{failed} .* offset 1 .*: invalid literal for int.*",
            progress,
            rf"at least \d+ more like: {failed} at topic.*\.\.\.",
            rf"{name}: stopped after \d+\.\d s: 30 records read, 1 sent, 10 dropped, lag 0",
        ]


@pytest.fixture
def adder(kafka: EmbeddedKafka, tmp_path: Path) -> Adder:
    adder = Adder(kafka, tmp_path, f"adder-{secrets.token_hex(3)}")
    for topic in (adder.source, adder.sink):
        kafka.create_topic(topic, 1)
    return adder


def _run(adder: Adder, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the program on thirty records, ten of which are not numbers."""
    records = [("k", f"no number {n}" if n % 3 == 1 else str(n)) for n in range(30)]
    adder.kafka.produce(adder.source, records)
    return subprocess.run(
        adder.command(),
        cwd=adder.home,
        env=adder.environment(**settings),
        capture_output=True,
        text=True,
        timeout=240,
    )


def _matches(lines: list[str], patterns: list[str]) -> bool:
    """Return whether lines match these patterns; an optional pattern matches any number of lines."""
    if not patterns:
        return not lines
    optional = patterns[0].endswith(")?")
    if lines and re.fullmatch(rf"\d\d:\d\d:\d\d {patterns[0]}", lines[0]):
        return _matches(lines[1:], patterns if optional else patterns[1:])
    return optional and _matches(lines, patterns[1:])


def test_a_program_reports_its_progress_line_by_line(adder: Adder) -> None:
    ended = _run(adder, MILLSTREAM_ON_PROCESS_ERROR="skip")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert _matches(ended.stderr.splitlines(), adder.lines()), ended.stderr
    name = adder.name
    assert f"INFO millstream.application: Application {name} (consumer group {name})" in adder.log
    parsing = re.findall(
        r"^[-\d]+ [:,\d]+ INFO adder\.parsing \[pid \d+, task 0_0\]: parsing (\d+)$", adder.log, re.MULTILINE
    )
    assert [int(number) for number in parsing] == [
        n for n in range(30) if n % 3 != 1
    ]  # logged in a Spark worker


def test_with_json_output_every_line_is_json_and_an_error_is_one_message(adder: Adder) -> None:
    ended = _run(adder, MILLSTREAM_OUTPUT="json")
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
    assert (lines[-2]["event"], lines[-2]["state"]) == ("failed", "failed")
    assert (error["error"], "partition 0, offset 1 " in error["message"]) == ("ProcessingError", True), error
    assert " (<string>, line 10, in parsed)" in error["message"]
    log = adder.log
    assert "Traceback (most recent call last):" in log
    assert log.count('File "<string>", line 10, in parsed\n') == 1
    logged = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    parsing = [line for line in logged if line["logger"] == "adder.parsing"]
    assert (parsing[0]["level"], parsing[0]["message"], parsing[0]["task"]) == ("info", "parsing 0", "0_0")


def test_a_signal_to_the_process_group_stops_a_program_between_micro_batches(adder: Adder) -> None:
    adder.kafka.produce(adder.source, [("k", "1")])
    with subprocess.Popen(
        adder.command("on"),
        cwd=adder.home,
        env=adder.environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stderr is not None
        shown = next(line for line in program.stderr if " records read, " in line)
        os.killpg(program.pid, signal.SIGTERM)
        shown += program.communicate(timeout=120)[1]
    assert program.returncode == 0, shown
    stopped = rf"{adder.name}: stopped after \d+\.\d s: 1 records read, 1 sent, lag 0\n$"
    assert re.search(stopped, shown), shown
