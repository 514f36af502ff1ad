"""Forks: what a station's children let go of, those that a function of the user forks.

With a child that holds the socket, its connections or the lock, nobody could tell that the station has died, and no other could take
its place.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def let_go(path: Path, lock: int) -> None:
    """Let go of a station, in a child.

    The descriptors stay in use, as objects that the child has copies of may close them once more.

    Args:
        path: Where the station listens.
        lock: Descriptor of its lock.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in [lock, *_sockets_at(path)]:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _sockets_at(path: Path) -> Iterator[int]:
    """Return the descriptors of a socket that listens and of its connections, also of those that nobody has looked at yet."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the descriptor that the listing used
            descriptor = int(name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _address_of(descriptor) == str(path):
                yield descriptor


def _address_of(descriptor: int) -> object:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return copy.getsockname()
