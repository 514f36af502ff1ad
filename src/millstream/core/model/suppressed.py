"""Suppressed: how long the updates of a table are held back.

A table forwards every update of a row. *Suppressing* holds updates back in a buffer, one per row, and gives the newest one
later: until the row's window has closed, when it is final, or for some time. The buffer may be limited; then it says what
happens when it is full. What it keeps of a row is a :class:`Held`; in its bytes, lengths of -1 stand for None:

    timestamp (8) | length of the value (4) | length of the value before (4) | number of headers (4)
    value | value before | for each header: length of the name (4) | length of its value (4) | name | value
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from millstream.core.model.arguments import checked_methods
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import Headers
from millstream.core.model.serdes import Serde
from millstream.core.model.windows import idle_millis

_HEAD: Final = struct.Struct(">qiiI")
_LENGTHS: Final = struct.Struct(">ii")

WhenFull = Literal["emit_early", "fail"]
"""What a buffer with too much in it does: give its oldest updates, or stop the application."""


@checked_methods
@dataclass(frozen=True)
class Suppressed:
    """How long updates are held back, and in how large a buffer. Made by its two functions.

    Attributes:
        limit_ms: How long, in the stream time of the operator; None is until the row's window closes.
        max_records: How many rows the buffer of a task may have; None is any number.
        max_bytes: How many bytes it may have, serialised; None is any number.
        when_full: What happens when there are more.
        close_idle_after_ms: How long nothing arrives before the wall clock takes over; None is never.

    Source: ``org.apache.kafka.streams.kstream.Suppressed``.
    """

    limit_ms: int | None
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: WhenFull = "fail"
    close_idle_after_ms: int | None = None

    def __post_init__(self) -> None:
        if self.limit_ms is not None and self.limit_ms < 0:
            raise TopologyError(f"the time limit of suppressed updates is at least 0 ms, not {self.limit_ms}")
        for option, value in (("max_records", self.max_records), ("max_bytes", self.max_bytes)):
            if value is not None and value < 1:
                raise TopologyError(f"{option} of suppressed updates is at least 1, not {value}")
        if self.when_full not in ("emit_early", "fail"):
            raise TopologyError(
                f"when_full of suppressed updates is 'emit_early' or 'fail', not {self.when_full!r}"
            )

    @property
    def limited(self) -> bool:
        """Whether the buffer can be full."""
        return self.max_records is not None or self.max_bytes is not None

    @staticmethod
    def until_window_closes(
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        close_idle_after: Duration | None = None,
    ) -> Suppressed:
        """Give one final result per window; deletions are not given at all.

        Args:
            max_records: How many windows of keys the buffer of a task may have. One more stops the application, because
                nothing that is given early is final.
            max_bytes: How many bytes it may have, likewise.
            close_idle_after: After so long without an update, time goes on by the wall clock, so that the last windows
                close; None waits for records.

        Raises:
            TopologyError: If a limit is not positive.

        Source: ``Suppressed.untilWindowCloses``; ``close_idle_after`` has no counterpart there.
        """
        return Suppressed(None, max_records, max_bytes, "fail", idle_millis(close_idle_after))

    @staticmethod
    def until_time_limit(
        limit: Duration,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: WhenFull = "emit_early",
        close_idle_after: Duration | None = None,
    ) -> Suppressed:
        """Give at most one update per row and time: the newest one, so long after the first that was held back.

        Args:
            limit: How long, in the stream time of the operator; 0 holds nothing back.
            max_records: How many rows the buffer of a task may have.
            max_bytes: How many bytes it may have, serialised.
            when_full: ``emit_early`` gives the oldest rows before their time, ``fail`` stops the application.
            close_idle_after: After so long without an update, time goes on by the wall clock, so that the last updates
                are given; None waits for records.

        Raises:
            TopologyError: If the time is negative, or a limit is not positive.

        Source: ``Suppressed.untilTimeLimit``; ``close_idle_after`` has no counterpart there.
        """
        return Suppressed(millis(limit), max_records, max_bytes, when_full, idle_millis(close_idle_after))


class Held(NamedTuple):
    """The newest update of a row that is held back.

    Attributes:
        new: Its value; None is a deletion.
        old: The value that was given last, None if there is none.
        timestamp: The update's, ms since the epoch.
        headers: The update's.
    """

    new: Any
    old: Any
    timestamp: int
    headers: Headers


def held(key: Serde[Any], value: Serde[Any]) -> Serde[Held]:
    r"""Make the serde of held updates of a table.

    Args:
        key: Serde of its keys; only its name is used, which says how to read the keys of the store.
        value: Serde of its values.

    Example:
        >>> from millstream.core.model import serdes
        >>> serde = held(serdes.string, serdes.string)
        >>> serde.deserialize(serde.serialize(Held("b", None, 7, (("h", b"x"),))))
        Held(new='b', old=None, timestamp=7, headers=(('h', b'x'),))
    """
    parts = _Held(value.serialize, value.deserialize)
    return Serde(f"held({key.name}, {value.name})", parts.write, parts.read, value.immutable, (Held,))


@dataclass(frozen=True, slots=True)
class _Held:
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]

    def write(self, update: Held) -> bytes:
        new, old = (None if value is None else self.to_bytes(value) for value in update[:2])
        parts = [
            _HEAD.pack(update.timestamp, _length(new), _length(old), len(update.headers)),
            new or b"",
            old or b"",
        ]
        for name, content in update.headers:
            encoded = name.encode()
            parts += [_LENGTHS.pack(len(encoded), _length(content)), encoded, content or b""]
        return b"".join(parts)

    def read(self, data: bytes) -> Held:
        timestamp, *lengths, count = _HEAD.unpack_from(data)
        (new, old), at = _cut(data, _HEAD.size, lengths)
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            (name, content), at = _cut(data, at + _LENGTHS.size, _LENGTHS.unpack_from(data, at))
            headers.append(((name or b"").decode(), content))
        return Held(self._value(new), self._value(old), timestamp, tuple(headers))

    def _value(self, data: bytes | None) -> Any:
        return None if data is None else self.from_bytes(data)


def _length(part: bytes | None) -> int:
    return -1 if part is None else len(part)


def _cut(data: bytes, at: int, lengths: Any) -> tuple[list[bytes | None], int]:
    """Give the parts of these lengths, and where they end."""
    parts: list[bytes | None] = []
    for length in lengths:
        parts.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    return parts, at
