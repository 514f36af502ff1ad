"""The Python that a local Spark starts for workers and helpers: this Python, with the installed PySpark first in its path.

Spark puts ``pyspark.zip`` first in ``PYTHONPATH``, and every process recompiles the modules that it imports from an archive. The installed
package is compiled. On Linux, these processes are forks of a server that has imported the package once: see
``millstream.edge.forks.fork_server``.
"""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark

from millstream.drivers.forked_children import close_in_children
from millstream.drivers.private import process_directory

_SCRIPT: Final = """#!/bin/sh
export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"
case "$1 $2" in
"-m pyspark."* | "-m millstream."*) if [ -S {socket} ]; then exec {python} -IS {client} {socket} {python} "$@"; fi ;;
esac
exec {python} "$@"
"""
_CLIENT: Final = "millstream.edge.forks.fork_client"
_SERVER: Final = "millstream.edge.forks.fork_server"
_SET_BY_SPARK: Final = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
"""Variables of Spark's Python processes that are read at import, unless the user sets them."""


def import_path() -> str:
    """Return this program's module path in ``PYTHONPATH`` format."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def worker_python() -> str:
    """Return the command for workers and helpers: another Python named by ``PYSPARK_PYTHON``, or a script that starts this one.

    The script is omitted if it cannot be executed, for example in a temporary directory without execute permission, or if ``SPARK_HOME``
    refers to a different Spark than the installed one, because the archive belongs to that Spark.
    """
    chosen = os.environ.get("PYSPARK_PYTHON") or sys.executable
    return _script() if chosen == sys.executable and _is_installed_spark() else chosen


def _is_installed_spark() -> bool:
    home = os.environ.get("SPARK_HOME")
    return not home or (Path(home) / "python").resolve() == Path(pyspark.__file__).parent.resolve() / "python"


def start_fork_server(log: Path | None) -> None:
    """Start the fork server for the Python processes of the next JVM. It ends with this process.

    Does nothing unless the platform is Linux and the JVM uses the script.

    Args:
        log: File for the server's output. None means this program's output.
    """
    if sys.platform != "linux" or worker_python() != str(_script_path()):
        return
    _socket().unlink(missing_ok=True)
    with open(os.devnull if log is None else log, "ab") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", _SERVER, str(_socket())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None if log is None else output,
            env={**_SET_BY_SPARK, **os.environ, "PYTHONUNBUFFERED": "YES"},
            process_group=0,  # signals to the group of this program must not reach the forks
        )
    assert server.stdin is not None
    close_in_children(server.stdin)
    atexit.register(
        server.communicate
    )  # closes the server's standard input, like the end of this process, and waits


def _script_path() -> Path:
    return process_directory() / "python"


def _socket() -> Path:
    return process_directory() / "fork.sock"


@cache
def _script() -> str:
    script, client = _script_path(), find_spec(_CLIENT)
    assert client is not None
    parts = {
        "path": import_path(),
        "python": sys.executable,
        "client": str(client.origin),
        "socket": str(_socket()),
    }
    script.write_text(_SCRIPT.format(**{name: shlex.quote(text) for name, text in parts.items()}))
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable
