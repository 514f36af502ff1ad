"""Other processes: whether they are alive, and what they send over a connection."""

from __future__ import annotations

import os
import socket


def is_alive(process: int) -> bool:
    """Return whether a process of this host is alive, by its id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is the process of another user
    return True


def received(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes from a connection, exactly so many.

    Raises:
        ConnectionResetError: If the other process has closed the connection.
    """
    data = bytearray(size)
    view, end = memoryview(data), 0
    while end < size:
        got = connection.recv_into(view[end:])
        if not got:
            raise ConnectionResetError("it has hung up")
        end += got
    return bytes(data)
