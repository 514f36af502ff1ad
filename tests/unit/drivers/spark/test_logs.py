"""A worker logs as the program does; another process shows it."""

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


def shown(logs: WorkerLogs, before: str = "") -> str:
    pickled = base64.b64encode(pickle.dumps(logs)).decode()
    command = [sys.executable, "-c", WORKER.replace("BEFORE", before), pickled]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def worker_logs(*, as_json: bool = False, least: int = logging.NOTSET) -> WorkerLogs:
    return WorkerLogs((("", logging.WARNING), ("program", logging.DEBUG)), as_json, least, 0)


def test_lines_say_when_how_serious_who_and_which_task() -> None:
    first, second, *error = shown(worker_logs()).splitlines()
    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} DEBUG program\.part \[pid \d+, task 0_3\]: details of it"
    assert re.fullmatch(line, first)
    assert second.endswith("task 0_3]: shown")
    assert error[-1] == "LookupError: x"


def test_json_has_the_same_with_the_traceback() -> None:
    first, second, error = map(json.loads, shown(worker_logs(as_json=True)).splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("debug", "program.part", "details of it")
    assert (second["task"], isinstance(second["process"], int)) == ("0_3", True)
    assert error["traceback"].endswith("LookupError: x")


def test_quiet_shows_warnings_and_errors() -> None:
    assert "details" not in shown(worker_logs(least=logging.WARNING))
    assert "shown" in shown(worker_logs(least=logging.WARNING))


def test_a_worker_that_has_a_handler_is_left_as_it_is() -> None:
    assert (
        shown(worker_logs(), "logging.basicConfig(format='own %(message)s')").splitlines()[0] == "own shown"
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


def test_the_program_itself_stays_as_it_is() -> None:
    before = logging.getLogger().handlers[:]
    WorkerLogs.of_this_process().apply()
    assert logging.getLogger().handlers == before
