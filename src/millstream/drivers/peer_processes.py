"""Other processes: whether they are alive, and the data they send over a connection."""

from __future__ import annotations

import os
import socket


def is_alive(process: int) -> bool:
    """Return whether the process of this host with this id is alive."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # no process has so large an id
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True


def received(connection: socket.socket, size: int) -> bytes:
    """Return exactly ``size`` bytes from a connection.

    Raises:
        ConnectionResetError: If the other process has closed the connection.
    """
    data = bytearray(size)
    view, end = memoryview(data), 0
    while end < size:
        got = connection.recv_into(view[end:])
        if not got:
            raise ConnectionResetError("it has closed the connection")
        end += got
    return bytes(data)
