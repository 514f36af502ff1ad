"""``millstream pause``, ``resume``, ``throttle``, ``parallelism``, ``status``, ``top`` and ``page``, with a fake application."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from millstream.core.model.errors import ControlError
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.edge.cli import top
from millstream.edge.cli.commands import app
from millstream.edge.cli.top_table import drawn
from millstream.edge.control import control_file
from millstream.edge.control.control_file import delete_control_file, write_control_file
from millstream.edge.status.application_status import Status, ThreadStatus

STATUS = Status("running", 3, {"in": 7_000, "other": 0}, 1234.5, 2, paused=["in"], throttled={"in": 5_000})


class FakeApplication:
    """Answers as an application does, and records the requests."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.orders: list[tuple[str, dict[str, Any]]] = []
        self.status = STATUS
        self.refusal: ControlError | None = None

    def answer(self, question: str, order: tuple[str, dict[str, Any]]) -> Status:
        if self.refusal is not None:
            raise self.refusal
        self.orders.append(order)
        return self.status

    def run(self, command: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, [command, "app", *arguments, "--state-dir", str(self.home)])


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[FakeApplication]:
    application = FakeApplication(tmp_path)
    server = ControlServer(application.answer, b"key", process_directory())
    (tmp_path / "app").mkdir()
    write_control_file(tmp_path / "app", server.address)
    yield application
    server.close()


@pytest.mark.parametrize(
    ("command", "order"),
    [
        (["pause"], ("pause", {"topics": None, "subtopologies": None, "keep": False})),
        (
            ["pause", "--topic", "a", "--topic", "b", "--keep"],
            ("pause", {"topics": ["a", "b"], "subtopologies": None, "keep": True}),
        ),
        (["resume", "--subtopology", "1"], ("resume", {"topics": None, "subtopologies": [1]})),
        (["throttle", "in", "5"], ("throttle", {"topic": "in", "records_per_second": 5})),
        (["throttle", "in", "off"], ("throttle", {"topic": "in", "records_per_second": None})),
    ],
)
def test_commands_are_sent_and_the_resulting_state_is_printed(
    listening: FakeApplication, command: list[str], order: tuple[str, dict[str, Any]]
) -> None:
    result = listening.run(*command)
    assert (result.exit_code, result.stderr) == (0, "")
    assert listening.orders == [order]
    assert result.stdout == "paused: in\nthrottled: in to 5,000/s\n"


@pytest.mark.parametrize(("given", "sent"), [("4", 4), ("auto", "auto")])
def test_the_number_of_workers_is_sent(listening: FakeApplication, given: str, sent: int | str) -> None:
    result = listening.run("parallelism", given)
    assert (result.exit_code, result.stdout) == (0, f"workers per partition: {given}\n")
    assert listening.orders == [("parallelism", {"workers": sent})]


@pytest.mark.parametrize("given", ["many", "", "1_0", " 4 ", "\N{ARABIC-INDIC DIGIT THREE}", "4.0"])
def test_a_value_that_is_not_a_whole_number_is_refused(listening: FakeApplication, given: str) -> None:
    result = listening.run("parallelism", given)
    assert (result.exit_code, listening.orders) == (1, [])
    assert f"the number of workers must be a whole number, or 'auto', not {given!r}" in result.stderr
    result = listening.run("throttle", "in", given)
    assert (result.exit_code, listening.orders) == (1, [])
    assert f"must be a whole number of records per second, or 'off', not {given!r}" in result.stderr


def test_the_status_is_printed_as_text(listening: FakeApplication) -> None:
    listening.status = replace(
        STATUS,
        workers=4,
        paused=[],
        throttled={},
        waiting={"0_0": "waits for 'b'"},
        restoring=["task 1_0"],
        error="one\ntwo",
    )
    assert listening.run("status").stdout.splitlines() == [
        "app: running",
        "  micro-batch  3",
        "  tasks        2",
        "  workers      4",
        "  records/s    1,234.5",
        "  lag          in 7,000, other 0",
        "  paused       nothing",
        "  throttled    nothing",
        "  waiting      task 0_0 waits for 'b'",
        "  restoring    task 1_0",
        "  error        one",
        "  error        two",
    ]


def test_the_status_shows_the_threads_of_tasks(listening: FakeApplication) -> None:
    threads = {"0_0": ThreadStatus(2, (1_200, 1_100), 0), "0_1": ThreadStatus(1, (900,), 3)}
    listening.status = replace(STATUS, threads=threads)
    lines = listening.run("status").stdout.splitlines()
    assert "  threads      0_0: 2 have executed 1,200, 1,100 records" in lines
    assert "  threads      0_1: 1 have executed 900 records; 3 were ended by functions" in lines


def test_the_status_can_be_printed_as_json(listening: FakeApplication) -> None:
    assert json.loads(listening.run("status", "--json").stdout) == json.loads(json.dumps(asdict(STATUS)))


def test_top_shows_topics_and_problems(listening: FakeApplication) -> None:
    listening.status = replace(
        STATUS, error="no broker", dropped={"0_1": 1_200}, waiting={"0_0": "waits for 'b'"}
    )
    lines = [line.split() for line in listening.run("top", "--once").stdout.splitlines()]
    assert lines[0][:5] == ["app", "running", "micro-batch", "3", "1,234"]
    assert ["in", "7,000", "0", "paused"] in lines
    assert ["other", "0", "0"] in lines
    assert ["task", "0_1", "dropped", "1,200", "records"] in lines
    assert ["error", "no", "broker"] in lines


LONG_TOPIC = "my-application-KSTREAM-AGGREGATE-STATE-STORE-0000000003-some-long-name-repartition"


def test_top_truncates_nothing_if_its_output_is_not_a_terminal(listening: FakeApplication) -> None:
    why = f"waits for {LONG_TOPIC}-0, which is empty here and has more records on the broker"
    listening.status = replace(STATUS, lag={LONG_TOPIC: 123_456_789}, waiting={"0_0": why})
    lines = [line.rstrip() for line in listening.run("top", "--once").stdout.splitlines()]
    assert f"{LONG_TOPIC}  123,456,789         0" in lines
    assert f"task 0_0 {why}" in lines


def test_top_truncates_no_name_or_number_on_a_narrow_terminal(listening: FakeApplication) -> None:
    console = Console(file=StringIO(), width=50)
    with console.capture() as shown:
        console.print(
            drawn("app", replace(STATUS, lag={LONG_TOPIC: 123_456_789}, throttled={LONG_TOPIC: 5_000}))
        )
    assert "…" not in shown.get()
    assert "123,456,789" in shown.get()


def test_top_ends_when_the_application_ends(
    listening: FakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_file, "_RELEASE_S", 0)
    home = listening.home / "app"
    statuses = top.later_statuses(home, "app", interval_s=0)
    assert next(statuses) == STATUS
    listening.status = replace(STATUS, state="stopping")
    assert next(statuses).state == "stopping"
    delete_control_file(home)  # as an application does when it ends
    assert list(statuses) == []


def test_top_fails_when_the_application_is_killed(
    listening: FakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_file, "_RELEASE_S", 0)
    statuses = top.later_statuses(listening.home / "app", "app", interval_s=0)
    next(statuses)
    listening.refusal = ControlError("application 'app' does not answer")
    with pytest.raises(ControlError, match="does not answer"):
        next(statuses)


def test_an_error_from_the_application_is_printed(listening: FakeApplication) -> None:
    listening.refusal = ControlError("application 'app' does not read 'x'")
    result = listening.run("pause", "--topic", "x")
    assert result.exit_code == 1
    assert result.stderr == "millstream pause: application 'app' does not read 'x'\n"


def test_a_rate_that_is_not_a_number_is_refused_without_a_request(listening: FakeApplication) -> None:
    result = listening.run("throttle", "in", "fast")
    assert (result.exit_code, listening.orders) == (1, [])
    assert "a whole number of records per second, or 'off', not 'fast'" in result.stderr


def test_an_application_that_is_not_running_is_reported(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["status", "app", "--state-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "millstream status: application 'app' is not running with this state directory" in result.stderr


def test_the_status_page_address_is_printed_only_while_the_application_runs(
    listening: FakeApplication,
) -> None:
    (listening.home / "app/page.url").write_text("http://127.0.0.1:1/#token\n")
    shown = listening.run("page")
    assert (shown.exit_code, shown.stdout) == (0, "http://127.0.0.1:1/#token\n")
    delete_control_file(listening.home / "app")
    shown = listening.run("page")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "millstream page: application 'app' is not running" in shown.stderr
