"""The fork server: a forked daemon behaves and ends like one that is started directly. The tests act as Spark's JVM."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server runs on Linux")

# PySpark's daemon takes the module of its workers from its arguments if the name begins with "pyspark".
WORKER = "pyspark_circumstances"
CIRCUMSTANCES = """
import json, os, resource, signal, sys
from pyspark.serializers import write_with_length

def main(infile, outfile):
    mask = os.umask(0)
    os.umask(mask)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
    ours = ("SPARK_SAID", "MILLSTREAM_EXECUTOR_PID")
    here = {
        "arguments": sys.argv[1:], "path": sys.path, "directory": os.getcwd(), "mask": mask, "hash": hash("x"),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE), "signals": [str(signal.getsignal(n)) for n in numbers],
        "environment": {name: value for name, value in os.environ.items() if name not in ("_", "MILLSTREAM_EXECUTOR_PID")},
        "main": sys.modules["__main__"].__spec__.name, "own_group": os.getpgrp() == os.getppid(), "descriptors": len(os.listdir("/proc/self/fd")),
    }
    print("straße", flush=True)
    sys.stderr.write("told\\n")
    executor = os.environ.get("MILLSTREAM_EXECUTOR_PID")
    write_with_length(json.dumps({"here": here, "executor": executor}).encode(), outfile)
    outfile.flush()
"""


class Daemon:
    """A PySpark daemon, started as by Spark, and one of its workers."""

    def __init__(self, started: subprocess.Popen[bytes]) -> None:
        self.started = started
        assert self.started.stdout is not None
        (port,) = struct.unpack(">i", self.started.stdout.read(4))
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._stream = self._connection.makefile("rwb")
        self.worker = psutil.Process(self._number())
        self.daemon = self.worker.parent()

    def _number(self) -> int:
        number: int = struct.unpack(">i", self._stream.read(4))[0]
        return number

    def circumstances(self) -> dict[str, Any]:
        self._stream.write(struct.pack(">i", 4) + b"key!")
        self._stream.flush()
        assert self._stream.read(self._number()) == b"ok"
        found: dict[str, Any] = json.loads(self._stream.read(self._number()))
        return found

    def end(self) -> tuple[bytes, bytes]:
        """Close the connections to the daemon, as the JVM does when it ends."""
        self._stream.close()
        self._connection.close()
        return self.started.communicate(timeout=120)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Server:
    """A fork server, and the processes that it starts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "fork.sock"
        (home / f"{WORKER}.py").write_text(CIRCUMSTANCES)
        (home / "elsewhere").mkdir()
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("COV_", "MILLSTREAM_"))
        }
        set_by_spark = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES"}
        path = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))  # Python ignores repeated entries
        self.environment = {**inherited, **set_by_spark, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millstream.edge.forks.fork_server", str(self.socket)],
            env=self.environment,
            stdin=subprocess.PIPE,
        )
        self.server_process = psutil.Process(self.process.pid)
        await_condition(lambda: self.socket.exists() or self.process.poll(), "the server to listen")

    def daemon(self, *, forked: bool = True, more: Mapping[str, str] | None = None) -> Daemon:
        return Daemon(self.started(["-m", "pyspark.daemon", WORKER], forked=forked, more=more or {}))

    def started(
        self, arguments: list[str], *, forked: bool, more: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[bytes]:
        client = find_spec("millstream.edge.forks.fork_client")
        assert client is not None
        command = [sys.executable, *arguments]
        if forked:
            command = [sys.executable, "-IS", str(client.origin), str(self.socket), *command]
        spark_variables = {"PYTHON_WORKER_FACTORY_SECRET": "key!", "SPARK_SAID": "yes"}
        path = f"{self.home}{os.pathsep}{self.environment['PYTHONPATH']}"
        environment = {**self.environment, **spark_variables, "PYTHONPATH": path, **more}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment, cwd=self.home / "elsewhere", stdin=pipe, stdout=pipe, stderr=pipe,
            preexec_fn=_ignore_interrupts,
        )  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    new_server = Server(tmp_path_factory.mktemp("server"))
    yield new_server
    new_server.process.kill()
    new_server.process.communicate()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    new_server = Server(tmp_path)
    yield new_server
    new_server.process.kill()
    new_server.process.communicate()


def await_condition(holds: Callable[[], object], description: str, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {within_s} s for {description}"
        time.sleep(0.02)


def is_fork(daemon: Daemon, server: Server) -> bool:
    return daemon.daemon is not None and daemon.daemon.ppid() == server.process.pid


def test_a_forked_daemon_runs_in_the_same_environment_as_one_that_is_started_directly(server: Server) -> None:
    forked, plain = server.daemon(), server.daemon(forked=False)
    assert is_fork(forked, server)
    found, expected = forked.circumstances(), plain.circumstances()
    assert found["here"] == expected["here"]
    assert found["executor"] == str(os.getpid())
    assert forked.end() == plain.end() == ("straße\n".encode(), b"told\n")


def test_forked_processes_have_the_names_of_their_modules(server: Server) -> None:
    forked = server.daemon()
    assert forked.daemon is not None
    await_condition(lambda: forked.worker.name() == "pyspark_circums", "the name of the worker")
    assert forked.daemon.name() == "daemon"
    forked.end()


def test_only_the_user_can_connect_and_the_server_has_no_threads_except_the_allocators(
    server: Server,
) -> None:
    server.daemon().end()  # now the server has imported its modules
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks if task.name != str(server.process.pid)]
    assert set(names) <= {"jemalloc_bg_thd"}


@pytest.mark.parametrize(
    "more", [{"PYTHONHASHSEED": "5"}, {"OMP_NUM_THREADS": "2"}, {"A_SETTING": "of the user"}]
)
def test_a_different_environment_variable_starts_python_instead_of_a_fork(
    server: Server, more: dict[str, str]
) -> None:
    started = server.daemon(more=more)
    assert started.daemon is not None
    assert started.daemon.pid == started.started.pid
    started.end()


def test_a_connection_without_a_request_does_not_stop_the_server(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.socket))
    started = server.daemon()
    assert is_fork(started, server)
    started.end()


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_a_forked_daemon_ends_with_its_workers_when_spark_ends_it(
    server: Server, number: signal.Signals | None
) -> None:
    started = server.daemon()
    assert started.daemon is not None
    if number is not None:
        started.started.send_signal(number)
    started.end()
    await_condition(lambda: not started.daemon.is_running(), "the fork to end")
    await_condition(lambda: not started.worker.is_running(), "its worker to end")
    assert server.server_process.children() == []


def test_a_fork_that_is_not_a_daemon_ends_with_its_client(server: Server) -> None:
    (server.home / "millstream_waiting.py").write_text(
        "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    )
    waiting = server.started(["-m", "millstream_waiting"], forked=True)
    assert waiting.stdout is not None
    fork = psutil.Process(int(waiting.stdout.readline()))
    assert (fork.ppid(), fork.name()) == (server.process.pid, "millstream_wait")
    waiting.kill()
    waiting.communicate(timeout=120)
    await_condition(lambda: not fork.is_running(), "the fork to end")


def test_spark_notices_the_end_of_a_fork(server: Server) -> None:
    started = server.daemon()
    assert started.daemon is not None
    started.daemon.kill()
    started.started.wait(timeout=120)
    started.worker.kill()
    started.end()


def test_daemons_keep_running_and_start_without_a_fork_after_the_server_was_killed(
    own_server: Server,
) -> None:
    forked = own_server.daemon()
    own_server.process.kill()
    own_server.process.wait()
    assert forked.circumstances()["executor"] == str(os.getpid())
    plain = own_server.daemon()
    assert plain.daemon is not None
    assert plain.daemon.pid == plain.started.pid
    plain.end()
    forked.end()
    await_condition(lambda: not forked.worker.is_running(), "the fork's worker to end")


def test_the_server_and_its_forks_end_with_the_program(own_server: Server) -> None:
    forked = own_server.daemon()
    own_server.process.communicate(timeout=120)
    assert own_server.process.returncode == 0
    forked.end()
    await_condition(lambda: not forked.worker.is_running(), "the fork's worker to end")
