"""What Spark starts in place of Python when the fork server can provide the process.

Runs as a program, without this package and without ``site``, in some milliseconds. Arguments: the socket of the fork server, the Python
to become if the server does not fork, and the arguments of Python, ``-m MODULE ...``.

The fork takes over the standard streams of this process, which only lasts as long as the fork. If this process ends first, because Spark
ends it, the kernel sends the fork SIGTERM.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys


def _forked(line: socket.socket, path: str, command: list[str]) -> bool:
    """Ask for a fork with this process's streams, environment, directory and limit of open files; return whether there is one."""
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
    """Live as long as a fork, or become Python if there is none.

    Args:
        path: Socket of the fork server.
        command: A module, and its arguments.
    """
    with socket.socket(socket.AF_UNIX) as line:
        forked = _forked(line, path, list(command))
        if forked:
            for stream in (0, 1, 2):  # who waits for the end of a stream waits for the fork alone
                os.close(stream)
            line.recv(1)
            os._exit(0)
    os.execv(python, [python, option, *command])


if __name__ == "__main__":
    main(*sys.argv[1:])
