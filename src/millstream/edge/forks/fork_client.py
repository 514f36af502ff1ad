"""The program that Spark starts instead of Python, to obtain a process from the fork server.

It runs without this package and without ``site``, so it starts within milliseconds. Arguments: the socket of the fork server, the Python
to execute if the server does not fork, and the arguments of Python, ``-m MODULE ...``.

The fork takes over the standard streams of this process; this process waits until the fork ends. If Spark ends this process first, the
kernel sends SIGTERM to the fork.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys


def _forked(line: socket.socket, path: str, command: list[str]) -> bool:
    """Request a fork with this process's streams, environment, directory and limit of open files; return whether it exists."""
    request = {
        "command": command,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "executor": os.getppid(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    try:
        line.connect(path)
        socket.send_fds(line, [b"\n"], [0, 1, 2])
        line.sendall(json.dumps(request).encode())
        line.shutdown(socket.SHUT_WR)
        return line.recv(1) == b"y"
    except OSError:
        return False


def main(path: str, python: str, option: str, *command: str) -> None:
    """Live as long as the fork, or execute Python if the server does not fork.

    Args:
        path: Socket of the fork server.
        python: The Python to execute without a fork.
        option: ``-m``.
        command: A module and its arguments.
    """
    with socket.socket(socket.AF_UNIX) as line:
        forked = _forked(line, path, list(command))
        if forked:
            for stream in (0, 1, 2):  # so that only the fork keeps the streams open
                os.close(stream)
            line.recv(1)
            os._exit(0)
    os.execv(python, [python, option, *command])


if __name__ == "__main__":
    main(*sys.argv[1:])
