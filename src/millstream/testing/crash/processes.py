"""The application's processes: the program, and all processes that it starts, directly or indirectly.

The program runs as a child that cannot outlive the harness. The processes that it starts (the driver's JVM, executors, Python daemons and
their workers) have a mark in their environment, which children inherit. The *family* consists of all processes with the mark of one
program. A process is therefore found even if its parent has ended, and processes that the harness did not start are never touched.

When only the program ends, the driver's JVM notices the end of its standard input and exits, followed by its executors and then their
workers; until then, they continue to work. A container ends all of them at once, as does ``kill``: no process of an earlier start is left
when the next one begins.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from pyspark import cloudpickle
from pyspark.find_spark_home import _find_spark_home

from millstream.core.model.errors import MillstreamError
from millstream.testing._java import TiedProcess
from millstream.testing.crash.app import Job
from millstream.testing.crash.kill_plan import Target

if TYPE_CHECKING:
    import psutil

PROGRAM = "millstream.edge.application.job_process"
"""The module that runs a job."""

_MARK = "CRASH_TEST_RUN"
TASKS = "pyspark.worker"
_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
_COMMIT = "pyspark.sql.worker.python_streaming_sink_runner"
_WORKERS = {TASKS: "worker", _PLANNER: "source_runner", _COMMIT: "sink_runner"}
"""Modules of Spark's Python workers, and their process names under the fork server. Other modules run only for a moment."""
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_ASYNC_WORKER = "millstream.drivers.async_worker"
_FORK_SERVER = "millstream.edge.forks.fork_server"
_FORK_CLIENT = "forks/fork_client.py"
_GONE_S = 30.0
_PAUSE_S = 0.01
_LOG_LINES = 40
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): |.* \(details: .*\)$")
_ERROR_WIDTH = 240


class CrashTestError(MillstreamError):
    """The harness cannot continue, for example because a process does not end, a directory is not empty, or psutil is missing.

    Args:
        message: The cause, with the last lines of the application's log if they are useful.
    """


@final
class CrashedProgram:
    """An application in a separate process, which can be restarted. Use it from one thread.

    Args:
        home: An existing directory for its log and for files of Spark.
    """

    def __init__(self, home: Path, job: Job) -> None:
        _processes()  # fails early if psutil is missing
        self.log = home / "program.log"
        self._home = home
        self._job = home / "job.pickle"
        self._job.write_bytes(cloudpickle.dumps(job))
        self._has_workers = str(job.settings.get("master")).startswith("local-cluster")
        self._mark = secrets.token_hex(8)
        self._process: TiedProcess | None = None

    def start(self) -> None:
        """Start the program without waiting until the application works."""
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
        own = {_MARK: self._mark, "PYTHONPATH": path}
        if self._has_workers:
            own |= self._own_spark_home()
        self._process = TiedProcess(
            [sys.executable, "-m", PROGRAM, str(self._job)],
            log=self.log,
            directory=self._home,
            environment={**inherited, **own},
        )

    def exit_code(self) -> int | None:
        """Return the exit code of the program: None while it runs, the negative signal number if it was killed."""
        return None if self._process is None else self._process.exit_code()

    def stop(self, grace_s: float) -> int | None:
        """Stop the program with SIGTERM, and kill the rest of its family."""
        if self._process is not None:
            self._process.end(grace_s=grace_s)
        code = self.exit_code()
        self.kill()
        return code

    def kill(self) -> None:
        """Kill the program and its family with SIGKILL, and wait until they have ended.

        Raises:
            CrashTestError: If a process still runs after half a minute.
        """
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
        while others := self._other_processes():  # a process may have started another one meanwhile
            _kill(others)
        if self._process is not None:
            self._process.end()

    def _other_processes(self) -> list[psutil.Process]:
        """Return the family without the program. Only the owner of the program, a child, may wait for it."""
        own = None if self._process is None else self._process.pid
        return [process for process in self.family() if process.pid != own]

    def family(self) -> list[psutil.Process]:
        """Return the running processes of the family, including the program."""
        return sorted(self._marked(), key=lambda process: process.pid)

    def victims(self, target: Target) -> list[psutil.Process]:
        """Return the processes of a target. While the application starts, there may be none.

        Args:
            target: ``driver``, ``executor``, ``worker``, ``async-worker``, ``main``, ``task``, ``planner`` or ``commit``.
        """
        is_one = _KINDS[target]
        return [process for process in self.family() if _certainly(is_one, process)]

    def last_words(self) -> str:
        return "\n".join(self._log_lines()[-_LOG_LINES:])

    def last_error(self) -> str:
        """Return the last error in the program's log as one line; empty if there is none."""
        errors = [line for line in self._log_lines() if _ERROR.match(line)]
        return textwrap.shorten(errors[-1], _ERROR_WIDTH) if errors else ""

    def _log_lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def _marked(self) -> Iterator[psutil.Process]:
        library = _processes()
        for process in library.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and _is_alive(process):
                    yield process
            except library.Error:
                continue  # belongs to another user, or has just ended

    def _own_spark_home(self) -> dict[str, str]:
        """Create a Spark home of links, and return the environment variables for it.

        The workers of ``local-cluster`` write into the Spark home, which must not be the installation. The home is used by this program only,
        so a class archive for it would not be worth its cost.
        """
        home = self._home / "spark"
        if not home.exists():
            home.mkdir()
            for entry in Path(_find_spark_home()).iterdir():
                if entry.name != "work":
                    (home / entry.name).symlink_to(entry)
        return {"SPARK_HOME": str(home), "MILLSTREAM_CLASS_ARCHIVES": "off"}


def kill_one(process: psutil.Process) -> str:
    """Kill one process with SIGKILL and wait until it has ended.

    Returns:
        Its process id and the last words of its command line.

    Raises:
        CrashTestError: If the process still runs after half a minute.
    """
    name = named(process)
    _kill([process])
    return name


def named(process: psutil.Process) -> str:
    """Return a description of a process: its id, its parent's id, and the last words of its command line, or a fork's name."""
    try:
        parent, command = process.parent(), process.cmdline()
        if _FORK_SERVER in command:
            command = ["fork", process.name()]
    except _processes().Error:
        return f"pid {process.pid}"
    return f"pid {process.pid} of {None if parent is None else parent.pid}: {' '.join(command[-2:])}"


def signalled(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to processes. Processes that have ended are skipped."""
    for process in processes:
        try:
            process.send_signal(number)
        except _processes().NoSuchProcess:
            continue


def _kill(processes: list[psutil.Process]) -> None:
    signalled(processes, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_S
    while left := [process for process in processes if _is_alive(process)]:
        if time.monotonic() > deadline:
            raise CrashTestError(f"{_GONE_S:.0f} s after SIGKILL these processes are still there: {left}")
        time.sleep(_PAUSE_S)


def _is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie does not run, and its parent may reap it much later."""
    library = _processes()
    try:
        return bool(process.is_running() and process.status() != library.STATUS_ZOMBIE)
    except library.NoSuchProcess:
        return False


def _certainly(holds: Callable[[psutil.Process], bool], process: psutil.Process) -> bool:
    """Return whether a condition is true for a process; False if the process has ended."""
    try:
        return holds(process)
    except _processes().Error:
        return False


def _is_driver(process: psutil.Process) -> bool:
    command = process.cmdline()
    return (
        "org.apache.spark.deploy.SparkSubmit" in command and "org.apache.spark.launcher.Main" not in command
    )


def works_as(process: psutil.Process, module: str) -> bool:
    """Return whether a process is a worker for a module. A worker forked by a daemon has its command line; the daemon is not a worker."""
    parent, command = process.parent(), process.cmdline()
    if _FORK_SERVER in command:
        return process.name() == _WORKERS[module]
    if any(part.endswith(_FORK_CLIENT) for part in command):
        return False  # a client that waits for a fork; the fork is found separately
    forked = any("daemon" in part for part in command)
    return command[-1:] == [module] and (not forked or (parent is not None and parent.cmdline() == command))


_KINDS: dict[Target, Callable[[psutil.Process], bool]] = {
    "driver": _is_driver,
    "executor": lambda process: _EXECUTOR in process.cmdline(),
    "worker": lambda process: any(works_as(process, module) for module in _WORKERS),
    "async-worker": lambda process: _ASYNC_WORKER in process.cmdline(),
    "task": lambda process: works_as(process, TASKS),
    "planner": lambda process: works_as(process, _PLANNER),
    "commit": lambda process: works_as(process, _COMMIT),
    "main": lambda process: PROGRAM in process.cmdline(),
}


def _processes() -> Any:
    try:
        import psutil
    except ImportError:
        raise CrashTestError(
            "the crash harness finds processes with psutil, which is not installed: pip install 'millstream[testing]'"
        ) from None
    return psutil
