"""An encrypted connection between the application and a host of its executors, for two processes that share a key.

TLS without certificates encrypts the connection (anonymous elliptic-curve Diffie-Hellman). Each side then uses the key to prove that it
is an end of this connection, which excludes a man in the middle. Messages are plain values in Python's marshal format, which runs no
code.

TLS with a pre-shared key is equivalent, but Python supports it only since 3.13.
"""

from __future__ import annotations

import hmac
import marshal
import select
import socket
import ssl
import threading
from typing import Any, Final

from millstream.drivers.peer_processes import received

_CIPHERS: Final = "AECDH-AES256-SHA:@SECLEVEL=0"
"""Anonymous ciphers need this security level. The key authenticates instead."""
_BINDING: Final = "tls-unique"
_PROOF_BYTES: Final = 32
_LENGTH_BYTES: Final = 4
_HANDSHAKE_S: Final = 10.0
_ANSWER_S: Final = 10.0


class Channel:
    """A connection whose other end knows the key. :meth:`ask` is thread-safe."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def ask(self, request: Any) -> Any:
        """Send a request, which is a plain value, and return the answer.

        Raises:
            OSError: If the other side does not answer, or a request before was interrupted. The caller then closes the channel.
        """
        with self._lock:
            try:
                self.send(request)
                return self.receive()
            except BaseException:
                self.close()  # also after KeyboardInterrupt: the next request must not get the answer to this one
                raise

    def send(self, message: Any) -> None:
        data = marshal.dumps(message)
        self._connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def receive(self) -> Any:
        size = int.from_bytes(received(self._connection, _LENGTH_BYTES), "big")
        return marshal.loads(received(self._connection, size))

    def wait(self, seconds: float) -> bool:
        """Wait until there is data to receive, for at most ``seconds``. Return whether there is."""
        if self._connection.pending():
            return True
        return bool(select.select([self._connection], [], [], seconds)[0])

    def close(self) -> None:
        self._connection.close()


def accepted(connection: socket.socket, key: bytes) -> Channel:
    """Return the channel of a connection that another process has opened.

    Raises:
        OSError: If the other side does not know the key, or does not answer.
    """
    connection.settimeout(_HANDSHAKE_S)
    return _proven(_context(server=True).wrap_socket(connection, server_side=True), key)


def connect(address: tuple[str, int], key: bytes) -> Channel:
    """Connect to a listening process.

    Raises:
        OSError: If no process listens, or the other side does not know the key.
    """
    connection = socket.create_connection(address, _HANDSHAKE_S)
    return _proven(_context(server=False).wrap_socket(connection), key)


def _context(*, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 has no anonymous ciphers
    context.set_ciphers(_CIPHERS)
    return context


def _proven(connection: ssl.SSLSocket, key: bytes) -> Channel:
    """Exchange proofs of the key."""
    try:
        connection.sendall(_proof(connection, key, server=connection.server_side))
        expected = _proof(connection, key, server=not connection.server_side)
        if not hmac.compare_digest(received(connection, _PROOF_BYTES), expected):
            raise PermissionError("the peer does not have the key")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(_ANSWER_S)
        return Channel(connection)
    except BaseException:
        connection.close()
        raise


def _proof(connection: ssl.SSLSocket, key: bytes, *, server: bool) -> bytes:
    binding = connection.get_channel_binding(_BINDING)
    if not binding:
        raise PermissionError("the connection has no identity to prove")
    return hmac.digest(key, (b"server" if server else b"client") + binding, "sha256")
