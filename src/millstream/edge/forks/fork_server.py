"""A server that has imported what Spark's Python processes need, and forks them.

Until the first result Spark starts ten Python processes, one after another, and each imports for half a second or longer. The program
starts this server beside the JVM; it imports once, while the JVM starts. What Spark starts as Python is then ``millstream.edge.forks.fork_client``, which
asks for a fork and waits for its end.

A fork is what a plain start would be: with the standard streams, environment, working directory, module search path and limit of open
files of the client. A request is refused, and the client becomes Python, if a variable differs that may have been read when
modules were imported.

The server keeps nothing about its forks, and they do not need it. A daemon ends when Spark closes its standard input or dies, and takes
its workers with it; other processes end with their connection to Spark. Each gets SIGTERM when its client ends. The server ends when its
own standard input does, with the program. It runs on Linux; elsewhere Python is started as before.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millstream.drivers.async_worker import EXECUTOR
from millstream.edge.daemon import PRELOADED

_HELPERS: Final = (
    "ctypes.util",
    "pyarrow.pandas_compat",
    "pyspark.daemon",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "millstream.drivers.kafka.fetch",
    "millstream.drivers.kafka.produce",
    "millstream.drivers.kafka.transactions",
    "millstream.drivers.lmdb",
    "millstream.drivers.spark.sink",
    "millstream.drivers.spark.source",
    "millstream.drivers.spark.executor.host",
)
_OF_SPARK: Final = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_")
"""Prefixes of the variables that Spark sets for each process, and that are read at run time."""
_OF_SHELLS: Final = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PYTHONPATH"})
_OF_IMPORTS: Final = frozenset({"PYTHONHASHSEED", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"})
"""Spark sets them for most of its processes; the server starts with them."""
_LONGEST_NAME: Final = 15


@dataclass(frozen=True)
class ForkRequest:
    """A request for a fork.

    Attributes:
        command: A module, and its arguments; those of a daemon name the module of its workers.
        executor: Process id of the JVM that starts it.
        files: Soft and hard limit of open files.
    """

    command: list[str]
    environment: dict[str, str]
    directory: str
    executor: int
    files: tuple[int, int]


def can_fork(wanted: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Return whether a fork equals a plain start: all variables that an import may have read are the same."""
    different = {name for name in own.keys() | wanted.keys() if own.get(name) != wanted.get(name)}
    harmless = _OF_SHELLS | (_OF_IMPORTS - wanted.keys())
    return all(name in harmless or name.startswith(_OF_SPARK) for name in different)


def name_of(module: str) -> str:
    """Return the process name of a module, or of a worker of a daemon, for tools that list processes.

    Example:
        >>> name_of("pyspark.sql.worker.python_streaming_sink_runner")
        'sink_runner'
    """
    return module.rpartition(".")[2].removeprefix("python_streaming_")[:_LONGEST_NAME]


def _line_of_fork(listening: socket.socket) -> socket.socket:
    """Fork for each connection, and return it in the fork; the server ends with its standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries forks
    while True:
        ready, _, _ = select.select([0, listening.fileno()], [], [])
        if 0 in ready:
            os._exit(0)
        line, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return line
        line.close()


def _received(line: socket.socket) -> tuple[ForkRequest, list[int]]:
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rb") as text:
        return ForkRequest(**json.load(text)), streams


def _become(request: ForkRequest, streams: list[int], installed: list[str]) -> None:
    """Turn this fork into what a plain start would be."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for signal_number in (
        signal.SIGCHLD,
        signal.SIGHUP,
        signal.SIGTERM,
    ):  # SIGINT is ignored below PySpark's JVM
        signal.signal(signal_number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_NOFILE, request.files)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ[EXECUTOR] = str(request.executor)
    time.tzset()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [request.directory, *filter(None, paths), *installed]
    sys.argv[:] = request.command
    _show(request.command[0])


def _show(module: str) -> None:
    Path("/proc/self/comm").write_text(name_of(module))


def _tie(line: socket.socket, worker: str) -> None:
    """Let the kernel send SIGTERM to this fork, but not to its own workers, when the client ends."""

    def untie() -> None:
        line.close()
        _show(worker)

    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(line, fcntl.F_SETFL, os.O_ASYNC)
    os.register_at_fork(after_in_child=untie)
    line.sendall(b"y")  # fails if the client is gone


def main(path: str) -> None:
    """Import, serve, and run in each fork what its client asked for.

    Args:
        path: Path of the socket, in a private directory.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they concern the program, and the server ends with it
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    Path(path).chmod(0o600)
    listening.listen(64)
    for module in (*PRELOADED, *_HELPERS):
        with suppress(ImportError):  # the fork that needs it says so
            importlib.import_module(module)
    own = dict(os.environ)
    paths = own.get("PYTHONPATH", "").split(os.pathsep)
    installed = [directory for directory in sys.path[1:] if directory not in paths]
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages that all of them share
    line = _line_of_fork(listening)
    try:
        request, streams = _received(line)
    except (OSError, ValueError):  # the client is gone
        os._exit(0)
    if not can_fork(request.environment, own):
        os._exit(0)
    _become(request, streams, installed)
    _tie(line, request.command[-1])
    sys.modules.pop(request.command[0], None)
    runpy.run_module(request.command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
