"""The application's listener. Hosts of executors connect to it, and the application sends requests over these connections."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from millstream.drivers.remote_stores.secure_channel import Channel, accepted

log = logging.getLogger("millstream.queries")

_BACKLOG: Final = 128
_MOST_UNPROVEN: Final = 64
"""Maximum number of connections that have not proven the key yet. Others are closed; a host that needs one connects again."""
_PAUSE_S: Final = 0.1


class HostListener:
    """Listens on one address. Thread-safe.

    Args:
        address: The interface to listen on. The system selects the port.
        key: The key that hosts must know.
    """

    def __init__(self, address: str, key: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._key = key
        self._channels: dict[str, Channel] = {}
        self._lock = threading.Condition()
        self._unproven = threading.Semaphore(_MOST_UNPROVEN)
        self._closed = False
        threading.Thread(target=self._accept, name="millstream-query-hosts", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def channel(self, host: str) -> Channel | None:
        """Return the connection of a host, or None if there is none."""
        with self._lock:
            return self._channels.get(host)

    def hosts(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._channels)

    def await_hosts(self, wanted: Collection[str], seconds: float) -> None:
        """Wait until these hosts are connected, for at most ``seconds``."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._channels.keys() >= set(wanted), seconds)

    def lose(self, host: str, channel: Channel) -> None:
        """Close a connection that does not answer."""
        with self._lock:
            if self._channels.get(host) is channel:
                del self._channels[host]
        channel.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            channels = list(self._channels.values())
            self._channels.clear()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        for channel in channels:
            channel.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                log.warning("an executor host could not connect for queries: %r", error)
                time.sleep(_PAUSE_S)  # without free descriptors, every attempt fails at once
                continue
            if not self._unproven.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._welcome, args=(connection,), name="millstream-query-host", daemon=True
            ).start()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            channel = accepted(connection, self._key)
            host = str(channel.receive())
        except (OSError, ValueError, EOFError) as error:
            log.warning("a process could not connect for queries: %r", error)
            connection.close()
            return
        finally:
            self._unproven.release()
        with self._lock:
            before = self._channels.pop(host, None)
            if not self._closed:
                self._channels[host] = channel
                self._lock.notify_all()
        if before is not None:
            before.close()
        if self._closed:
            channel.close()
