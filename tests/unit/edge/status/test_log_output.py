"""The default log output. Each test runs a separate program, because logging is configured per process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import logging, sys
from pathlib import Path
from millstream.core.model.errors import MillstreamError
from millstream.edge.status.log_output import attach
from millstream.edge.status.progress_log import ProgressLog

{before}
print(attach({output!r}, Path("millstream.log")))
print(attach("debug", Path("another.log")))
ProgressLog("app").event("plan", "a line", topics=["a"])
logging.getLogger("millstream.application").info("for the file")
logging.getLogger("millstream.application").warning("a warning")
logging.getLogger("millstream.librdkafka").error("a client talks")
{after}
"""


def _run(tmp_path: Path, output: str, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(output=output, before=before, after=after)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def _messages(completed: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.partition(" ")[2] for line in completed.stderr.splitlines()]


def test_progress_lines_and_warnings_are_shown_and_everything_is_written_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "millstream.log").write_text("of yesterday")
    completed = _run(tmp_path, "lines")
    assert _messages(completed) == ["app: a line", "a warning"]
    assert completed.stdout.split() == ["millstream.log", "millstream.log"]
    kept = (tmp_path / "millstream.log").read_text()
    assert [line.split(": ", 1)[1] for line in kept.splitlines()] == [
        "app: a line",
        "for the file",
        "a warning",
        "a client talks",
    ]
    assert (tmp_path / "millstream.log.1").read_text() == "of yesterday"


def test_a_level_that_the_program_has_set_is_kept(tmp_path: Path) -> None:
    level = "logging.getLogger('millstream').setLevel(logging.WARNING)"
    completed = _run(tmp_path, "lines", before=level, after="print(logging.getLogger('millstream').level)")
    assert _messages(completed) == ["a warning"]
    assert completed.stdout.split()[-1] == "30"


def test_the_warning_of_pyspark_about_pandas_is_not_shown(tmp_path: Path) -> None:
    after = (
        "import warnings\n"
        "warnings.warn('PySpark does not yet fully support pandas >= 3.0.0. Some', FutureWarning)\n"
        "warnings.warn('mine', FutureWarning)\n"
    )
    shown = _run(tmp_path, "quiet", after=after).stderr
    assert ("mine" in shown, "pandas" in shown) == (True, False)


def test_quiet_shows_only_warnings(tmp_path: Path) -> None:
    assert _messages(_run(tmp_path, "quiet")) == ["a warning"]


def test_json_lines_have_the_fields_of_the_event(tmp_path: Path) -> None:
    line, warning = map(json.loads, _run(tmp_path, "json").stderr.splitlines())
    assert (line["event"], line["application"], line["topics"]) == ("plan", "app", ["a"])
    assert (line["message"], line["level"], warning["level"]) == ("app: a line", "info", "warning")


def test_debug_shows_everything(tmp_path: Path) -> None:
    completed = _run(tmp_path, "debug", after="raise MillstreamError('why')")
    assert _messages(completed)[:4] == ["app: a line", "for the file", "a warning", "a client talks"]
    assert "Traceback" in completed.stderr
    assert completed.stderr.endswith("millstream.core.model.errors.MillstreamError: why\n")
    assert (completed.stdout.split(), list(tmp_path.iterdir())) == (["None", "None"], [])


def test_an_error_of_millstream_is_one_message(tmp_path: Path) -> None:
    completed = _run(tmp_path, "quiet", after="raise MillstreamError('why') from ValueError('cause')")
    assert (completed.returncode, _messages(completed)) == (1, ["a warning", "why (details: millstream.log)"])
    kept = (tmp_path / "millstream.log").read_text()
    assert "ValueError: cause" in kept
    assert "Traceback" in kept


def test_other_errors_are_shown_with_a_traceback(tmp_path: Path) -> None:
    completed = _run(tmp_path, "quiet", after="raise ValueError('theirs')")
    assert completed.stderr.splitlines()[1].startswith("Traceback")
    assert completed.stderr.splitlines()[-1] == "ValueError: theirs"


def test_logging_that_the_program_has_configured_is_not_changed(tmp_path: Path) -> None:
    before = "logging.basicConfig(format='%(name)s %(message)s', level=logging.INFO)"
    completed = _run(tmp_path, "lines", before)
    assert completed.stderr.splitlines() == [
        "millstream.progress app: a line",
        "millstream.application for the file",
        "millstream.application a warning",
        "millstream.librdkafka a client talks",
    ]


_UNREACHABLE = {"bootstrap_servers": "127.0.0.1:1", "state_dir": "state", "request_timeout_ms": "500"}
_COPY = "import millstream as ms; builder = ms.StreamsBuilder(); builder.stream('in').to('out')\n"


def test_a_failed_start_is_one_message_after_the_line_of_its_phase(tmp_path: Path) -> None:
    program = f"{_COPY}ms.Application('copy', builder.build(), **{_UNREACHABLE}).run()"
    command = [sys.executable, "-c", program]
    _check_failed_start(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60))


def test_the_command_shows_a_failed_start_as_a_program_does(tmp_path: Path) -> None:
    completed = _run_command(tmp_path, "lines")
    _check_failed_start(completed)
    kept = (tmp_path / "state" / "copy" / "millstream.log").read_text()
    assert "Traceback (most recent call last):" in kept
    phase, error = map(json.loads, _run_command(tmp_path, "json").stderr.splitlines())
    assert (phase["event"], error["error"], error["level"]) == ("starting", "BrokerUnavailableError", "error")


def _run_command(tmp_path: Path, output: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "copying.py").write_text(_COPY)
    settings = [f"--set={name}={value}" for name, value in {**_UNREACHABLE, "output": output}.items()]
    command = [sys.executable, "-m", "millstream", "run", "copying:builder", "--id=copy", *settings]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def _check_failed_start(completed: subprocess.CompletedProcess[str]) -> None:
    phase, error = _messages(completed)
    assert (completed.returncode, completed.stdout) == (1, "")
    assert phase == "copy: reading the topics from 127.0.0.1:1"
    assert error.startswith("no Kafka broker responds at 127.0.0.1:1 ")
    assert error.endswith("/copy/millstream.log)")


def test_the_next_application_logs_to_its_own_file_if_the_first_directory_was_deleted(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    program = (
        "import logging, shutil\n"
        "from pathlib import Path\n"
        "from millstream.edge.status.log_output import attach\n"
        "log = logging.getLogger('millstream.application')\n"
        "attach('lines', Path('first/millstream.log'))\n"
        "shutil.rmtree('first')\n"
        "log.warning('between')\n"
        "Path('second').mkdir()\n"
        "print(attach('lines', Path('second/millstream.log')))\n"
        "log.warning('again')\n"
        "logging.getLogger('py4j').warning('of Spark')\n"
    )
    command = [sys.executable, "-c", program]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (_messages(completed), completed.stdout) == (["between", "again"], "second/millstream.log\n")
    kept = (tmp_path / "second/millstream.log").read_text().splitlines()
    assert [line.split(": ", 1)[1] for line in kept] == ["again", "of Spark"]
    assert not (tmp_path / "first").exists()
