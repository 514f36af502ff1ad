"""Suppressed: how long the updates of a table are held back.

A table forwards every update of a row. *Suppressing* holds updates back in a buffer, one per row, and gives the newest one
later: until the row's window has closed, when it is final, or for some time. The buffer may be limited; then it says what
happens when it is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.core.model.arguments import checked_methods
from penstock.core.model.durations import Duration, millis
from penstock.core.model.errors import TopologyError
from penstock.core.model.windows import idle_millis

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
