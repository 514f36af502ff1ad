"""``python -m millstream.edge.queries.host_process``: reads the local copies of a host for an application on another host.

A Spark task starts this process beside its executor when the application first queries a store whose local copy is on that host. The
process connects to the application, so nothing listens on the executor's host. It ends with the application or the executor.
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
from millstream.drivers.remote_stores.secure_channel import connect
from millstream.drivers.remote_stores.store_server import serve
from millstream.edge.queries.copy_readers import open_reader

_SPREAD_S: Final = 0.2
"""How long a Spark task occupies its executor, so that the next one runs on another executor."""


@dataclass(frozen=True)
class HostProcessSpec:
    """What hosts need to connect to the application. Sent with cloudpickle.

    Attributes:
        address: Where the application listens.
        connected: Hosts that already have a process or need none.
    """

    address: tuple[str, int]
    key: bytes = field(repr=False)
    directory: str
    connected: frozenset[str]


def start_host_process(spec: HostProcessSpec, _: Iterable[int]) -> None:
    """Start the process beside the executor of a Spark task, unless the host already has one or has no local copies."""
    if socket.gethostname() not in spec.connected and Path(spec.directory).is_dir():
        with suppress(BlockingIOError), _lock(spec.key, spec.directory).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _start(spec, lock.fileno())
    time.sleep(_SPREAD_S)


def _start(spec: HostProcessSpec, lock: int) -> None:
    """Start the process; it inherits the lock and holds it."""
    started = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # Spark parses the output of its workers
        pass_fds=[lock],
        start_new_session=True,
    )
    executor = int(os.environ.get(EXECUTOR) or os.getppid())
    assert started.stdin is not None
    with started.stdin as given:  # not on the command line, where other users can read the key
        given.write(json.dumps([*spec.address, spec.key.hex(), spec.directory, executor]).encode())


def main() -> None:
    address, port, encoded, directory, executor = json.load(sys.stdin)
    key = bytes.fromhex(encoded)
    try:
        channel = connect((address, port), key)
        channel.send(socket.gethostname())
        serve(channel, partial(open_reader, directory), partial(is_alive, executor))
    except OSError as error:
        sys.exit(f"queries: the application at {address}:{port} cannot be reached: {error}")
    finally:
        _lock(key, directory).unlink(missing_ok=True)


def _lock(key: bytes, directory: str) -> Path:
    """Return the lock file of a host's process. Each run of an application has its own key, hence its own file."""
    return Path(directory, f"queries-{hashlib.sha256(key).hexdigest()[:8]}.lock")


if __name__ == "__main__":
    main()
