"""The server: reads the local copies of a host for the application, over a connection that it opens to the application.

A request names the committed state that it reads. Requests are therefore independent, and the pages of one scan are consistent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.ports import ByteReader
from millstream.core.queries.copy_reader import CopyReader
from millstream.core.state.segments.log import Manifest
from millstream.drivers.remote_stores.secure_channel import Channel

OK: Final = "ok"
MOVED: Final = "moved"
FAILED: Final = "failed"

NEWEST: Final = "newest"
"""The method that opens the newest content of a copy and returns its version and token."""

_PAUSE_S: Final = 1.0
_PAGE_BYTES: Final = 1 << 20

OpenReader = Callable[[str, str], CopyReader]
"""Opens the reader of a task's copy, by task and engine."""


class CopyRequest(NamedTuple):
    """A read of a byte store.

    Attributes:
        version: The committed version of the task's state.
        method: ``get``, ``scan``, ``count``, or :data:`NEWEST` without a store.
        arguments: The arguments of the method. For a scan: low, high, reverse, and the maximum number of rows.
    """

    task: str
    engine: str
    version: int
    history: tuple[str, ...]
    store: str
    method: str
    arguments: tuple[Any, ...] = ()


class _Copies:
    def __init__(self, open_reader: OpenReader) -> None:
        self._open_reader = open_reader
        self._readers: dict[tuple[str, str], CopyReader] = {}
        self._used: set[tuple[str, str]] = set()

    def answer(self, request: CopyRequest) -> tuple[str, Any]:
        copy = request.task, request.engine
        self._used.add(copy)
        try:
            if copy not in self._readers:
                self._readers[copy] = self._open_reader(*copy)
            reader = self._readers[copy]
            if request.method == NEWEST:
                return OK, tuple(reader.newest().current[:2])
            view = reader.view(Manifest(request.version, tuple(request.history)))
            return OK, _read(view.open(request.store), request.method, request.arguments)
        except CopyMovedError as error:
            return MOVED, str(error)
        except StoreError as error:
            return FAILED, str(error)

    def release_unused(self) -> None:
        """Release the views of copies that were not requested since the last call, because an open view costs disk space."""
        for copy, reader in self._readers.items():
            if copy not in self._used:
                reader.release()
        self._used.clear()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def serve(channel: Channel, open_reader: OpenReader, goes_on: Callable[[], bool]) -> None:
    """Answer requests until the application ends.

    Args:
        goes_on: Called about once per second. False ends the server.
    """
    copies = _Copies(open_reader)
    pause_at = time.monotonic() + _PAUSE_S
    try:
        while True:
            if channel.wait(_PAUSE_S):
                channel.send(copies.answer(CopyRequest(*channel.receive())))
            if time.monotonic() >= pause_at:
                pause_at = time.monotonic() + _PAUSE_S
                copies.release_unused()
                if not goes_on():
                    return
    except OSError:
        return  # the application has ended
    finally:
        copies.close()
        channel.close()


def _read(store: ByteReader, method: str, arguments: tuple[Any, ...]) -> Any:
    if method == "get":
        return store.get(*arguments)
    if method == "count":
        return store.approximate_count()
    low, high, reverse, most = arguments
    return _page(store.scan(low, high, reverse=reverse), most)


def _page(rows: Iterator[tuple[bytes, bytes]], most: int) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return the first rows, and whether there may be more."""
    page: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        page.append((bytes(key), bytes(value)))
        size += len(key) + len(value)
        if len(page) >= most or size >= _PAGE_BYTES:
            return page, True
    return page, False
