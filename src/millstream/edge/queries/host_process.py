"""``python -m millstream.edge.queries.host_process``: reads the local copies of a host for an application elsewhere.

A Spark task starts it beside its executor when the application is first asked for a store whose copy is on that host. It connects to the
application, so nothing listens on the executor's host, and it ends with the application or the executor.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from millstream.drivers.async_worker import EXECUTOR
from millstream.drivers.peer_processes import is_alive
from millstream.drivers.remote_stores.secure_channel import connected
from millstream.drivers.remote_stores.store_server import serve
from millstream.edge.queries.copy_readers import open_reader

_SPREAD_S: Final = 0.2
"""How long a Spark task stays, so that the next one runs on another executor."""


@dataclass(frozen=True)
class HostProcessSpec:
    """What hosts need to know to connect to the application. Crosses as cloudpickle.

    Attributes:
        address: Where the application listens.
        directory: The directory of the local copies, on each host.
        connected: Hosts that need no process.
    """

    address: tuple[str, int]
    key: bytes = field(repr=False)
    directory: str
    connected: frozenset[str]


def start_host_process(spec: HostProcessSpec, _: Iterable[int]) -> None:
    """Start the process beside the executor of a Spark task, unless its host has one or has no copies."""
    if socket.gethostname() not in spec.connected and Path(spec.directory).is_dir():
        with suppress(BlockingIOError), _lock(spec.key, spec.directory).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _start(spec, lock.fileno())
    time.sleep(_SPREAD_S)


def _start(spec: HostProcessSpec, lock: int) -> None:
    """Start the process, which holds the lock from now on."""
    started = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # Spark reads what its workers print
        pass_fds=[lock],
        start_new_session=True,
    )
    executor = int(os.environ.get(EXECUTOR) or os.getppid())
    assert started.stdin is not None
    with started.stdin as given:  # not on the command line, which others can read
        given.write(json.dumps([*spec.address, spec.key.hex(), spec.directory, executor]).encode())


def main() -> None:
    address, port, encoded, directory, executor = json.load(sys.stdin)
    key = bytes.fromhex(encoded)
    try:
        channel = connected((address, port), key)
        channel.send(socket.gethostname())
        serve(channel, partial(open_reader, directory), partial(is_alive, executor))
    except OSError as error:
        sys.exit(f"queries: the application at {address}:{port} cannot be reached: {error}")
    finally:
        _lock(key, directory).unlink(missing_ok=True)


def _lock(key: bytes, directory: str) -> Path:
    """Return the file that the process of a host locks; each run of an application has its own key."""
    return Path(directory, f"queries-{hashlib.sha256(key).hexdigest()[:8]}.lock")


if __name__ == "__main__":
    main()
