"""Suppressed: how long the updates of a table are buffered.

A table forwards every update of a row. *Suppression* buffers updates, one per row, and emits the newest one later: when the window of
the row closes, so that the update is final, or after a time limit. The buffer may be limited; an option then defines what happens when
it is full. The buffered update of a row is a :class:`Held`. In its binary format, a length of -1 means None:

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
"""What happens when the buffer is full: emit the oldest updates early, or stop the application."""


@checked_methods
@dataclass(frozen=True)
class Suppressed:
    """How long updates are buffered, and the limits of the buffer. Created by its two static methods.

    Attributes:
        limit_ms: Time limit in stream time of the operator, ms; None means until the window of the row closes.
        max_records: Maximum number of rows in the buffer of a task; None means no limit.
        max_bytes: Maximum serialised size of the buffer of a task, bytes; None means no limit.
        when_full: What happens when a limit is exceeded.
        close_idle_after_ms: Time without updates after which the wall clock advances time, ms; None means never.

    Source: ``org.apache.kafka.streams.kstream.Suppressed``.
    """

    limit_ms: int | None
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: WhenFull = "fail"
    close_idle_after_ms: int | None = None

    def __post_init__(self) -> None:
        if self.limit_ms is not None and self.limit_ms < 0:
            raise TopologyError(
                f"the time limit of suppressed updates must be at least 0 ms, not {self.limit_ms}"
            )
        for option, value in (("max_records", self.max_records), ("max_bytes", self.max_bytes)):
            if value is not None and value < 1:
                raise TopologyError(f"{option} of suppressed updates must be at least 1, not {value}")
        if self.when_full not in ("emit_early", "fail"):
            raise TopologyError(
                f"when_full of suppressed updates must be 'emit_early' or 'fail', not {self.when_full!r}"
            )

    @property
    def limited(self) -> bool:
        """Whether the buffer has a size limit."""
        return self.max_records is not None or self.max_bytes is not None

    @staticmethod
    def until_window_closes(
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        close_idle_after: Duration | None = None,
    ) -> Suppressed:
        """Emit one final result per window. Deletions are not emitted. For an example, see ``KTable.suppress``.

        Args:
            max_records: Maximum number of keys and windows in the buffer of a task. Exceeding it stops the application, because an
                early result would not be final.
            max_bytes: Maximum size of the buffer, bytes. Exceeding it also stops the application.
            close_idle_after: Time without updates after which the wall clock advances time, so that the last windows close; ``timedelta``
                or ms. None waits for records.

        Returns:
            The argument of ``KTable.suppress``.

        Raises:
            TopologyError: If a limit is not positive.

        Source: ``Suppressed.untilWindowCloses`` (KIP-328). Kafka Streams has no counterpart of ``close_idle_after``.
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
        """Emit at most one update per row and time limit: the newest one, when the limit has passed since the first buffered update.

        Args:
            limit: Time limit in stream time of the operator; ``timedelta`` or ms. 0 disables buffering.
            max_records: Maximum number of rows in the buffer of a task.
            max_bytes: Maximum serialised size of the buffer of a task, bytes.
            when_full: ``emit_early`` emits the oldest rows early, ``fail`` stops the application.
            close_idle_after: Time without updates after which the wall clock advances time, so that the last updates are emitted;
                ``timedelta`` or ms. None waits for records.

        Returns:
            The argument of ``KTable.suppress``.

        Raises:
            TopologyError: If the time limit is negative, or a limit of the buffer is not positive.

        Source: ``Suppressed.untilTimeLimit`` (KIP-328). Kafka Streams has no counterpart of ``close_idle_after``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> limited = builder.table("in").suppress(ms.Suppressed.until_time_limit(1000), store="waiting")
            >>> limited.to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp, value in ((0, "a"), (500, "b"), (1500, "c")):
            ...     driver.pipe("in", "k", value, timestamp)
            >>> [record.value for record in driver.read("out")]
            ['c']
        """
        return Suppressed(millis(limit), max_records, max_bytes, when_full, idle_millis(close_idle_after))


class Held(NamedTuple):
    """The buffered newest update of a row.

    Attributes:
        new: New value; None is a deletion.
        old: The value that was emitted last; None if there is none.
    """

    new: Any
    old: Any
    timestamp: int
    headers: Headers


def held_serde(key: Serde[Any], value: Serde[Any], *, until_close: bool = False) -> Serde[Held]:
    """Create the serde of buffered updates of a table.

    Args:
        key: Serde of the table's keys. Only its name is used, which identifies the format of the store's keys.
        value: Serde of the table's values.
        until_close: True if the buffer is ordered by the ends of windows, False if by the times of updates. A buffer of one order cannot be
            continued in the other.
    """
    parts = _Held(value.serialize, value.deserialize)
    name = "held until close" if until_close else "held"
    return Serde(f"{name}({key.name}, {value.name})", parts.write, parts.read, value.immutable, (Held,))


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
        (new, old), position = _cut(data, _HEAD.size, lengths)
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            (name, content), position = _cut(
                data, position + _LENGTHS.size, _LENGTHS.unpack_from(data, position)
            )
            headers.append(((name or b"").decode(), content))
        return Held(self._value(new), self._value(old), timestamp, tuple(headers))

    def _value(self, data: bytes | None) -> Any:
        return None if data is None else self.from_bytes(data)


def _length(part: bytes | None) -> int:
    return -1 if part is None else len(part)


def _cut(data: bytes, position: int, lengths: Any) -> tuple[list[bytes | None], int]:
    parts: list[bytes | None] = []
    for length in lengths:
        parts.append(None if length < 0 else data[position : position + length])
        position += max(length, 0)
    return parts, position
