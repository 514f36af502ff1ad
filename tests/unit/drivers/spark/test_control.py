"""The control socket: a client that connects and sends nothing does not block the application."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from typing import Any

import pytest

from millstream.core.model.errors import ControlError, MillstreamError
from millstream.drivers.private import process_directory
from millstream.drivers.spark import control
from millstream.drivers.spark.control import ControlAddress, ControlServer

SILENT = 1_000
NOBODY = 65_534


@pytest.fixture
def server() -> Iterator[ControlServer]:
    control_server = ControlServer(lambda question, data: (question, data), b"key", process_directory())
    yield control_server
    control_server.close()


def connected(address: ControlAddress) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(address.path)
    return line


def test_silent_connections_do_not_block_requests(server: ControlServer) -> None:
    with ExitStack() as silent:
        for _ in range(SILENT):
            silent.enter_context(connected(server.address))
        assert server.address.ask("plan", 1) == ("plan", 1)


def test_a_client_that_does_not_authenticate_in_time_is_disconnected(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_AUTHENTICATION_S", 1)
    with connected(server.address) as line:
        while line.recv(1_024):  # the challenge, then the end
            pass


def test_a_client_with_another_key_gets_no_answer(server: ControlServer) -> None:
    with pytest.raises(Exception, match="digest"):
        ControlAddress(server.address.path, b"another").ask("plan", 1)
    assert server.address.ask("plan", 2) == ("plan", 2)


def test_an_answer_may_take_longer_than_the_authentication_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_AUTHENTICATION_S", 1)
    release_pipe = os.pipe()

    def slow(question: str, data: Any) -> Any:
        return os.read(release_pipe[0], 1)

    server = ControlServer(slow, b"key", process_directory())
    # The answer comes after the timeout set above.
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"])
    try:
        waiter = Thread(target=lambda: (sleeper.wait(), os.write(release_pipe[1], b"x")))
        waiter.start()
        assert server.address.ask("plan", 1) == b"x"
        waiter.join()
    finally:
        server.close()


def test_the_answer_to_an_interrupted_request_is_not_returned_to_the_next_one(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = control.Connection.recv

    def interrupted(connection: Any) -> Any:
        if current_thread() is main_thread():  # the server is in this process
            raise KeyboardInterrupt
        return receive(connection)

    with monkeypatch.context() as patched:
        patched.setattr(control.Connection, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.address.ask("plan", 1)
    assert server.address.ask("plan", 2) == ("plan", 2)


def test_threads_do_not_wait_for_each_other_or_get_each_others_answers() -> None:
    first_asked, second_asked = Event(), Event()

    def handler(question: str, number: int) -> tuple[int, bool]:
        if number == 1:
            first_asked.set()
            return number, second_asked.wait(30)
        second_asked.set()
        return number, True

    server = ControlServer(handler, b"key", process_directory())
    answers: list[Any] = []
    first = Thread(target=lambda: answers.append(server.address.ask("store", 1)))
    try:
        server.address.ask("store", 0)  # now there is a connection
        second_asked.clear()
        first.start()
        first_asked.wait()
        assert server.address.ask("store", 2) == (2, True)
        first.join()
        assert answers == [(1, True)]
    finally:
        server.close()


def test_a_forked_process_does_not_share_connections(server: ControlServer) -> None:
    assert server.address.ask("plan", 1) == ("plan", 1)
    child = os.fork()
    if not child:
        os._exit(len(control._IDLE))
    assert os.waitpid(child, 0)[1] == 0


def test_closing_the_server_removes_its_socket(server: ControlServer) -> None:
    server.close()
    assert not Path(server.address.path).exists()
    assert server.address.ask("plan", 1) is None


SERVER_PROGRAM = """
import sys
from pathlib import Path
from millstream.drivers.spark.control import ControlServer

print(ControlServer(lambda question, data: data, b"key", Path(sys.argv[1])).address.path, flush=True)
sys.stdin.read()
"""


def test_connections_to_runs_that_were_killed_or_have_stopped_are_closed(
    server: ControlServer, tmp_path: Path
) -> None:
    control._IDLE.clear()
    server.address.ask("plan", 1)
    killed = subprocess.Popen(
        [sys.executable, "-c", SERVER_PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with killed:
        assert killed.stdout is not None
        killed_address = ControlAddress(killed.stdout.readline().strip(), b"key")
        assert killed_address.ask("plan", 1) == 1
        killed.kill()
    stopped = ControlServer(lambda question, data: data, b"key", process_directory())
    assert stopped.address.ask("plan", 1) == 1
    (idle,) = control._IDLE[stopped.address]
    stopped.close()
    started = ControlServer(lambda question, data: data, b"key", process_directory())
    try:
        assert started.address.ask("plan", 1) == 1
        assert control._IDLE.keys() == {server.address, started.address}
        assert idle.closed
        assert server.address.ask("plan", 2) == ("plan", 2)
    finally:
        started.close()


def test_a_broken_connection_is_closed_and_forgotten(server: ControlServer) -> None:
    server.address.ask("plan", 1)
    (idle,) = control._IDLE[server.address]
    server.close()
    with socket.socket(fileno=os.dup(idle.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
    assert server.address.ask("plan", 1) is None
    assert idle.closed
    assert server.address not in control._IDLE


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect(server: ControlServer) -> None:
    assert stat.S_IMODE(Path(server.address.path).parent.stat().st_mode) == 0o700
    program = f"import socket; socket.socket(socket.AF_UNIX).connect({server.address.path!r})"
    attempt = subprocess.run(
        ["/usr/bin/python3", "-c", program], user=NOBODY, capture_output=True, text=True, check=False
    )
    assert "PermissionError" in attempt.stderr


class WithArgumentsError(Exception):
    """Like an error of a user's serde: it can be pickled, but not unpickled."""

    def __init__(self, value: int, expected: str) -> None:
        super().__init__(f"{value} is not {expected}")


def handled(question: str, data: Any) -> Any:
    if question == "object":
        return lambda: data
    if question == "error":
        raise WithArgumentsError(data, "even")
    return data


def test_an_answer_that_cannot_be_sent_is_reported_as_an_error() -> None:
    server = ControlServer(handled, b"key", process_directory())
    try:
        with pytest.raises(ControlError, match="objects that cannot be sent to another process"):
            server.address.ask("object", 1)
        with pytest.raises(MillstreamError, match=r"^WithArgumentsError: 1 is not even$"):
            server.address.ask("error", 1)
        assert server.address.ask("another", 2) == 2
    finally:
        server.close()
