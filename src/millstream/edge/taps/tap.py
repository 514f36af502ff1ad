"""The public interface of taps: samples of the records that reach a node of a running application."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any, Final, Self

from millstream.core.model.errors import ControlError, MillstreamError
from millstream.edge.lab.html import table_html
from millstream.edge.taps.tap_buffers import TapContent, TapCounts, TapRecord

DEFAULT_LIMIT: Final = 1_000
_POLL_S: Final = 0.1
_NOTHING_NEW: Final = 1 << 62
"""A number that samples never reach: a read after it returns no records."""
_COLUMNS: Final = ("batch", "topic", "partition", "offset", "timestamp", "key", "value")

AskTaps = Callable[[str, Mapping[str, object]], Any]
"""Sends an action to the application; see ``TapBuffers.answer``."""


class Tap:
    """Samples of the records that reach a node. A context manager.

    Created by :meth:`RunningApplication.tap`, which has an example. Iteration returns the samples in the buffer, then waits for new ones.
    It ends with the tap or the application. A tap without a lease also ends when nobody refers to it any more.

    Args:
        node: The name of the node.
        limit: How many of the newest samples are kept.
        ask: Sends an action to the application.
        lease_s: The tap ends after this time without a read, seconds; None for never.
        has_ended: Returns whether an application that does not answer has ended.

    Source: KIP-28: "check the results and intermediate values".
    """

    def __init__(
        self,
        node: str,
        limit: int,
        ask: AskTaps,
        *,
        lease_s: float | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self.node = node
        self._ask = ask
        self._has_ended = has_ended
        self._id: str = ask("open", {"node": node, "limit": limit, "lease_s": lease_s})
        self._final: TapContent | None = None
        # With a lease, the application is in another process, for which the garbage collector must not wait.
        if lease_s is None:
            weakref.finalize(self, ask, "abandon", {"tap": self._id}).atexit = False

    def records(self) -> tuple[TapRecord, ...]:
        """Return the samples in the buffer, oldest first.

        Raises:
            ControlError: If the application does not answer, or the tap has ended.
        """
        return self._read(0).records

    def counts(self) -> TapCounts:
        """Return how many records reached the node, were sampled, and were dropped from the buffer.

        Raises:
            ControlError: If the application does not answer, or the tap has ended.
        """
        return self._read(_NOTHING_NEW).counts

    def close(self) -> None:
        """Close the tap; its samples can still be read. Closing it twice is harmless.

        Raises:
            ControlError: If the application does not answer, or the tap has ended.
        """
        if self._final is None:
            self._final = self._ask("close", {"tap": self._id})

    def _read(self, after: int) -> TapContent:
        if self._final is not None:
            return self._final.without_first(after)
        content: TapContent = self._ask("read", {"tap": self._id, "after": after})
        return content

    def __iter__(self) -> Iterator[TapRecord]:
        seen = 0
        while True:
            try:
                content = self._read(seen)
            except ControlError:
                if self._has_ended():
                    return
                raise
            yield from content.records
            seen = content.counts.sampled
            if content.ended:
                return
            if not content.records:
                time.sleep(_POLL_S)

    def __repr__(self) -> str:
        return f"<Tap {self.node!r}: {'closed' if self._final else 'on'}>"

    def _repr_html_(self) -> str:
        try:
            records = self.records()
        except MillstreamError as error:  # such as a tap of an application that has ended
            return f"<p>{escape(str(error))}</p>"
        return table_html(_COLUMNS, [[getattr(each, name) for name in _COLUMNS] for each in records])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.close()
        except ControlError:
            if not self._has_ended():
                raise
