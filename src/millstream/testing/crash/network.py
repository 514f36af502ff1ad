"""The network between an application and its brokers: relays that forward all bytes until they are cut.

Each broker has a relay that only the application uses, so a cut affects neither the harness nor the connections between brokers. A cut
resets all connections and refuses new ones until it is healed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar, final

from millstream.testing._broker import HOST
from millstream.testing._cluster import free_ports

T = TypeVar("T")

_CHUNK = 1 << 16


@final
class Network:
    """The relays of all brokers, in a separate thread. Use it from one thread.

    Example:
        >>> with Network(1) as network:
        ...     network.cut()
        ...     network.heal()
    """

    def __init__(self, brokers: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._relays = [_Relay(port) for port in free_ports(brokers)]
        self.ports = [(relay.target, self._do(relay.open())) for relay in self._relays]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for _, port in self.ports)

    def cut(self) -> None:
        for relay in self._relays:
            self._do(relay.cut())

    def heal(self) -> None:
        for relay in self._relays:
            self._do(relay.heal())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Relay:
    """The relay of one broker; runs in the event loop."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._is_cut = False
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def cut(self) -> None:
        self._is_cut = True
        for connection in self._open:
            connection.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def heal(self) -> None:
        self._is_cut = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        connection = asyncio.ensure_future(self._pass_on(reader, writer))
        self._open.add(connection)
        connection.add_done_callback(self._open.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward in both directions until one side closes. Ends at once if the broker does not accept the connection."""
        ends = [writer]
        ways: list[asyncio.Task[None]] = []
        try:
            answers, broker = await asyncio.open_connection(HOST, self.target)
            ends.append(broker)
            ways += [
                asyncio.ensure_future(_pump(reader, broker)),
                asyncio.ensure_future(_pump(answers, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass
        finally:
            for task in ways:
                task.cancel()
            for end in ends:
                end.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
