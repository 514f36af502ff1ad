"""Client ids that name a process, so that members of a consumer group can be recognised after a crash.

A broker keeps a killed member until its session times out. On the same machine, the operating system knows at once that the process is
gone.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from functools import cache
from pathlib import Path
from typing import Final

from millstream.drivers.peer_processes import is_alive

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")


def process_name(prefix: str) -> str:
    """Return a client id for this process: prefix, host, machine and process id, separated by hyphens."""
    return f"{prefix}-{socket.gethostname()}-{_machine()}-{os.getpid()}"


def may_live(name: str) -> bool:
    """Return False if the name is that of a process of this machine that has ended, and True for every other name.

    Example:
        >>> may_live(process_name("shop-driver")), may_live("another client")
        (True, True)
    """
    machine, _, pid = name.rpartition("-")
    if not machine.endswith(f"-{_machine()}") or not pid.isdecimal():
        return True
    return is_alive(int(pid))


def process_of(name: str) -> str:
    """Return text for errors about the process with a name."""
    pid = name.rpartition("-")[2]
    return f"process {pid} ({name})" if pid.isdecimal() else f"client {name}"


@cache
def _machine() -> str:
    """Return an id of the machine since its start, and of the container: where a process id means the same process."""
    try:
        seen = f"{_BOOT_ID.read_text()}{_PID_NAMESPACE.readlink()}"
    except OSError:
        seen = f"{socket.gethostname()}{uuid.getnode()}"
    return hashlib.sha256(seen.encode()).hexdigest()[:12]
