"""A worker logs with the settings of the program. The tests run a worker in another process."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import re
import subprocess
import sys

import pytest

from millstream.drivers.spark import logs
from millstream.drivers.spark.logs import WorkerLogs

WORKER = """
import base64, logging, pickle, sys
BEFORE
pickle.loads(base64.b64decode(sys.argv[1])).apply()
from millstream.drivers.spark.logs import running_task
running_task("0_3")
logging.getLogger("program.part").debug("details of %s", "it")
logging.getLogger("other").info("not shown")
logging.getLogger("other").warning("shown")
try:
    raise LookupError("x")
except LookupError:
    logging.getLogger("other").exception("failed")
"""


def log_output(logs: WorkerLogs, before: str = "") -> str:
    pickled = base64.b64encode(pickle.dumps(logs)).decode()
    command = [sys.executable, "-c", WORKER.replace("BEFORE", before), pickled]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def worker_logs(*, as_json: bool = False, least: int = logging.NOTSET) -> WorkerLogs:
    return WorkerLogs((("", logging.WARNING), ("program", logging.DEBUG)), as_json, least, 0)


def test_lines_contain_time_level_logger_process_and_task() -> None:
    first, second, *error = log_output(worker_logs()).splitlines()
    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} DEBUG program\.part \[pid \d+, task 0_3\]: details of it"
    assert re.fullmatch(line, first)
    assert second.endswith("task 0_3]: shown")
    assert error[-1] == "LookupError: x"


def test_json_lines_contain_the_same_facts_and_the_traceback() -> None:
    first, second, error = map(json.loads, log_output(worker_logs(as_json=True)).splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("debug", "program.part", "details of it")
    assert (second["task"], isinstance(second["process"], int)) == ("0_3", True)
    assert error["traceback"].endswith("LookupError: x")


def test_quiet_logging_shows_only_warnings_and_errors() -> None:
    assert "details" not in log_output(worker_logs(least=logging.WARNING))
    assert "shown" in log_output(worker_logs(least=logging.WARNING))


def test_a_worker_with_its_own_handler_is_not_changed() -> None:
    assert (
        log_output(worker_logs(), "logging.basicConfig(format='own %(message)s')").splitlines()[0]
        == "own shown"
    )


def test_the_program_reports_the_levels_that_it_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("a.program.of.this.test")
    logger.setLevel(logging.INFO)
    try:
        monkeypatch.setattr(
            logs, "_SHOWN", logs._Shown(as_json=True, least=logging.ERROR, own=logging.WARNING)
        )
        current = WorkerLogs.of_this_process()
    finally:
        logger.setLevel(logging.NOTSET)
    assert (current.as_json, current.least) == (True, logging.ERROR)
    assert dict(current.levels)["a.program.of.this.test"] == logging.INFO
    assert dict(current.levels)["millstream"] == logging.WARNING
    assert "" in dict(current.levels)
    assert not [name for name in dict(current.levels) if name.startswith("py4j")]


def test_the_logging_of_the_program_itself_is_not_changed() -> None:
    before = logging.getLogger().handlers[:]
    WorkerLogs.of_this_process().apply()
    assert logging.getLogger().handlers == before
