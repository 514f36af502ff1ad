"""Commands from another process, and the errors when the application does not answer."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import ControlError
from millstream.core.topology.analysis.ranges import Workers
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.edge.control.control_client import send
from millstream.edge.control.control_file import delete_control_file, write_control_file
from millstream.edge.control.remote_commands import executed
from millstream.edge.status.application_status import Status


class RecordingApplication:
    """An application that records its commands."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None:
        self.received.append(("pause", topics, subtopologies, keep))

    def resume(
        self, topics: Collection[str] | None = None, *, subtopologies: Collection[int] | None = None
    ) -> None:
        self.received.append(("resume", topics, subtopologies))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        if topic == "unknown":
            raise ControlError("there is no topic 'unknown'")
        self.received.append(("throttle", topic, records_per_second))

    def parallelism(self, workers: Workers) -> None:
        self.received.append(("parallelism", workers))

    def status(self) -> Status:
        return Status("running", 3, {"in": 7}, 1.5, 2, paused=["in"], throttled={"in": 5})


@pytest.fixture
def application() -> RecordingApplication:
    return RecordingApplication()


@pytest.fixture
def server(application: RecordingApplication) -> Iterator[ControlServer]:
    control_server = ControlServer(
        lambda question, data: executed(application, *data), b"key", process_directory()
    )
    yield control_server
    control_server.close()


def test_commands_reach_the_application_and_return_its_status(
    tmp_path: Path, application: RecordingApplication, server: ControlServer
) -> None:
    write_control_file(tmp_path, server.address)
    status = send(tmp_path, "app", "pause", topics=["in"], subtopologies=None, keep=True)
    send(tmp_path, "app", "resume", topics=None, subtopologies=[1])
    send(tmp_path, "app", "throttle", topic="in", records_per_second=5)
    assert application.received == [
        ("pause", ["in"], None, True),
        ("resume", None, [1]),
        ("throttle", "in", 5),
    ]
    assert status.throttled == {"in": 5}
    assert send(tmp_path, "app", "status") == status


def test_a_refused_command_is_an_error_of_its_sender(tmp_path: Path, server: ControlServer) -> None:
    write_control_file(tmp_path, server.address)
    with pytest.raises(ControlError, match="there is no topic 'unknown'"):
        send(tmp_path, "app", "throttle", topic="unknown", records_per_second=5)
    with pytest.raises(ControlError, match=r"the command 'dance'.* same version"):
        send(tmp_path, "app", "dance")


def test_the_control_file_is_private_and_deleted_with_the_application(
    tmp_path: Path, server: ControlServer
) -> None:
    (tmp_path / "control.json").write_text("left behind by a crash")
    (tmp_path / "control.json.partial").touch(0o666)
    write_control_file(tmp_path, server.address)
    assert [path.name for path in tmp_path.iterdir()] == ["control.json"]
    assert stat.S_IMODE((tmp_path / "control.json").stat().st_mode) == 0o600
    delete_control_file(tmp_path)
    delete_control_file(tmp_path)
    assert list(tmp_path.iterdir()) == []


def refusal(home: Path) -> str:
    with pytest.raises(ControlError) as caught:
        send(home, "app", "status")
    return str(caught.value)


def test_a_command_to_an_application_that_is_not_running_is_refused(tmp_path: Path) -> None:
    assert "'app' is not running with this state directory" in refusal(tmp_path)
    assert "--state-dir" in refusal(tmp_path)


def edited(home: Path, **facts: Any) -> None:
    file = home / "control.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


class TestTheControlFile:
    def test_of_a_process_that_has_ended_is_reported(self, tmp_path: Path, server: ControlServer) -> None:
        write_control_file(tmp_path, server.address)
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            ended.wait()
        edited(tmp_path, pid=ended.pid)
        assert "'app' does not answer: it has ended without deleting" in refusal(tmp_path)

    def test_of_a_closed_server_is_reported(self, tmp_path: Path, server: ControlServer) -> None:
        write_control_file(tmp_path, server.address)
        server.close()
        assert "'app' does not answer" in refusal(tmp_path)

    def test_with_the_key_of_another_server_is_reported(self, tmp_path: Path, server: ControlServer) -> None:
        write_control_file(tmp_path, server.address)
        edited(tmp_path, key=b"another".hex())
        assert "'app' does not answer" in refusal(tmp_path)

    def test_of_another_host_is_reported(self, tmp_path: Path, server: ControlServer) -> None:
        write_control_file(tmp_path, server.address)
        edited(tmp_path, on="elsewhere")
        assert "runs on host 'elsewhere'" in refusal(tmp_path)

    def test_that_is_damaged_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "control.json").write_text("{")
        assert "cannot be read" in refusal(tmp_path)

    def test_of_a_running_process_contains_its_id(self, tmp_path: Path, server: ControlServer) -> None:
        write_control_file(tmp_path, server.address)
        assert json.loads((tmp_path / "control.json").read_text())["pid"] == os.getpid()
