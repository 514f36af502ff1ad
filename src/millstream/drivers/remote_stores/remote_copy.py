"""A task's local copy on another host, read over the network. Implements ``CopyReader``, ``ByteStores`` and ``ByteReader``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.ports import ByteReader, ByteStores
from millstream.core.state.segments.log import Manifest
from millstream.drivers.remote_stores.store_server import MOVED, NEWEST, OK, CopyRequest

_FIRST_ROWS: Final = 64
_MORE_ROWS: Final = 4_096

Ask = Callable[[CopyRequest], tuple[str, Any]]
"""Sends a request to the host. Raises ``CopyMovedError`` while the host cannot be reached."""


class RemoteCopy:
    """Reads a copy on another host. Opens nothing, so there is nothing to release."""

    def __init__(self, ask: Ask, task: str, engine: str) -> None:
        self._ask = ask
        self._task = task
        self._engine = engine
        self._view = _RemoteView(ask, CopyRequest(task, engine, -1, (), "", ""))

    def view(self, known: Manifest) -> ByteStores:
        request = self._view.request
        if (request.version, request.history) != (known.version, known.history):
            request = CopyRequest(self._task, self._engine, known.version, known.history, "", "")
            self._view = _RemoteView(self._ask, request)
        return self._view

    def newest(self) -> Manifest:
        request = CopyRequest(self._task, self._engine, 0, (), "", NEWEST)
        version, token = value_of_answer(self._ask(request))
        return Manifest(version, (token,))

    def release(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _RemoteView:
    """One committed state of a copy.

    Attributes:
        request: Identifies the state, without store and method.
    """

    ask: Ask
    request: CopyRequest

    def open(self, name: str) -> ByteReader:
        return _RemoteReader(self.ask, self.request._replace(store=name))


@dataclass(frozen=True)
class _RemoteReader:
    ask: Ask
    request: CopyRequest

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._ask_host("get", key)
        return value

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        most, more = _FIRST_ROWS, True
        while more:
            rows, more = self._ask_host("scan", low, high, reverse, most)
            yield from rows
            if more:
                last: bytes = rows[-1][0]
                low, high = (low, last) if reverse else (last + b"\0", high)
                most = _MORE_ROWS

    def approximate_count(self) -> int:
        count: int = self._ask_host("count")
        return count

    def _ask_host(self, method: str, *arguments: Any) -> Any:
        return value_of_answer(self.ask(self.request._replace(method=method, arguments=arguments)))


def value_of_answer(answer: tuple[str, Any]) -> Any:
    """Return the value of a host's answer.

    Raises:
        CopyMovedError: If the copy does not have the state.
    """
    kind, value = answer
    if kind == OK:
        return value
    raise (CopyMovedError if kind == MOVED else StoreError)(value)
