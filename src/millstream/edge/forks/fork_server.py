"""A server that has imported the modules of Spark's Python processes, and forks these processes.

Before the first result, Spark starts ten Python processes, one after another, and each imports modules for half a second or longer. The
program starts this server beside the JVM. Instead of Python, Spark then starts ``millstream.edge.forks.fork_client``, which requests a
fork and waits for its end.

A fork equals a plain start: it has the standard streams, environment, working directory, module search path and limit of open files of
the client. The server refuses a request, and the client executes Python, if a variable differs that an import may have read.

The forks do not need the server. Each fork receives SIGTERM when its client ends. The server ends with its own standard input, that is,
with the program. It runs on Linux; elsewhere Spark starts Python as usual.
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
"""Prefixes of variables that Spark sets for each process, and that are read at run time rather than at import."""
_OF_SHELLS: Final = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PYTHONPATH"})
_OF_IMPORTS: Final = frozenset({"PYTHONHASHSEED", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"})
"""Variables that Spark sets for most of its processes. The server starts with them."""
_LONGEST_NAME: Final = 15


@dataclass(frozen=True)
class ForkRequest:
    """A request for a fork.

    Attributes:
        command: A module and its arguments; a daemon's arguments name the module of its workers.
        executor: Process id of the JVM that starts the process.
        files: Soft and hard limit of open files.
    """

    command: list[str]
    environment: dict[str, str]
    directory: str
    executor: int
    files: tuple[int, int]


def can_fork(wanted: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Return whether a fork would equal a plain start: all variables that an import may have read are equal."""
    different = {name for name in own.keys() | wanted.keys() if own.get(name) != wanted.get(name)}
    harmless = _OF_SHELLS | (_OF_IMPORTS - wanted.keys())
    return all(name in harmless or name.startswith(_OF_SPARK) for name in different)


def name_of(module: str) -> str:
    """Return the process name of a module or a daemon's worker, for tools that list processes."""
    return module.rpartition(".")[2].removeprefix("python_streaming_")[:_LONGEST_NAME]


def _line_of_fork(listening: socket.socket) -> socket.socket:
    """Fork for each connection, and return the connection in the fork. The server ends with its standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps forks
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
    """Make this fork equal to a plain start."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # SIGINT is ignored below PySpark's JVM.
    for signal_number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
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


def _tie_to_client(line: socket.socket, worker: str) -> None:
    """Let the kernel send SIGTERM to this fork, but not to its own workers, when the client ends."""

    def untie() -> None:
        line.close()
        _show(worker)

    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(line, fcntl.F_SETFL, os.O_ASYNC)
    os.register_at_fork(after_in_child=untie)
    line.sendall(b"y")  # fails if the client has ended


def main(path: str) -> None:
    """Import modules, serve requests, and run the requested module in each fork."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the program; the server ends with it
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    Path(path).chmod(0o600)
    listening.listen(64)
    for module in (*PRELOADED, *_HELPERS):
        with suppress(ImportError):  # the fork that needs the module reports the error
            importlib.import_module(module)
    own = dict(os.environ)
    paths = own.get("PYTHONPATH", "").split(os.pathsep)
    installed = [directory for directory in sys.path[1:] if directory not in paths]
    gc.collect()
    gc.freeze()  # a collection in a fork would copy pages that all forks share
    line = _line_of_fork(listening)
    try:
        request, streams = _received(line)
    except (OSError, ValueError):  # the client has ended
        os._exit(0)
    if not can_fork(request.environment, own):
        os._exit(0)
    _become(request, streams, installed)
    _tie_to_client(line, request.command[-1])
    sys.modules.pop(request.command[0], None)
    runpy.run_module(request.command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
