"""Windows: how a stream is cut into pieces of time, and when results of a piece are given.

A *window* of a fixed size holds the records with ``start <= timestamp < start + size``. Windows lie on a grid from the
epoch on: each begins at a multiple of the *advance*. Tumbling windows lie side by side (the advance is the size), hopping
windows overlap.

*Grace* is how long a window waits for records that are out of order: it closes once the stream time of its operator has
reached ``end + grace``. A record that comes later is *late* and is left out of that window. The grace has no default,
because each would be wrong for someone without anything to see: a short one loses data, a long one keeps results back and
state alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.core.model.arguments import checked_constructor, checked_methods
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError


def idle_millis(after: Duration | None) -> int | None:
    """Give how long an input has to be idle before the wall clock takes over, in ms; None is never.

    Raises:
        TopologyError: If it is not positive.
    """
    if after is None:
        return None
    if millis(after) < 1:
        raise TopologyError(f"close_idle_after is at least 1 ms, not {millis(after)}; None waits for records")
    return millis(after)


@checked_methods
@dataclass(frozen=True)
class EmitStrategy:
    """When a windowed aggregation gives results.

    Attributes:
        at_close: Whether that is once per window, when it closes; else at every record.
        close_idle_after_ms: How long nothing arrives before the wall clock takes over; None is never.
        every_ms: At least so much wall clock lies between two looks for closed windows; 0 gives each when it closes.
        loses: Whether windows that their store hides before they were looked for are lost.

    Source: ``org.apache.kafka.streams.kstream.EmitStrategy`` (KIP-825).
    """

    at_close: bool
    close_idle_after_ms: int | None = None
    every_ms: int = 0
    loses: bool = False

    @property
    def at_once(self) -> bool:
        """Whether each window is given by the record that closes it, before that is added."""
        return self.at_close and not self.every_ms and not self.loses

    @staticmethod
    def on_window_close(
        *,
        every: Duration = 0,
        expired: Literal["given", "lost"] = "given",
        close_idle_after: Duration | None = None,
    ) -> EmitStrategy:
        """Give one result per window, when it closes.

        Args:
            every: At least so much wall clock lies between two looks for closed windows, and only a record looks: a timedelta,
                or milliseconds. 0 gives each window when it closes, which does not depend on the wall clock; Kafka Streams
                has 1000 ms.
            expired: ``"given"``: no window is lost. ``"lost"``: as Kafka Streams does without caches, closed windows are looked for behind the
                record that let time advance, when the store may hide them already because time jumped further than its
                retention. Sessions are given in either case, as there.
            close_idle_after: After so long without a record, time goes on by the wall clock, so that the last windows
                close; None waits for records. It has no counterpart in Kafka Streams.

        Raises:
            TopologyError: If ``every`` is negative, ``expired`` is neither, or ``close_idle_after`` is not positive.
        """
        if millis(every) < 0:
            raise TopologyError(f"on_window_close: every is at least 0 ms, not {millis(every)}")
        if expired not in ("given", "lost"):
            raise TopologyError(f"on_window_close: expired is 'given' or 'lost', not {expired!r}")
        return EmitStrategy(
            at_close=True,
            close_idle_after_ms=idle_millis(close_idle_after),
            every_ms=millis(every),
            loses=expired == "lost",
        )


on_window_update = EmitStrategy(at_close=False)
"""Give the result so far at every record."""
on_window_close = EmitStrategy.on_window_close()
"""Give one result per window, when it closes; only records let time go on."""


@dataclass(frozen=True)
class TimeWindows:
    """Windows of a fixed size on a grid. Made as :class:`TumblingWindows` or :class:`HoppingWindows`.

    Attributes:
        size_ms: How long a window is.
        advance_ms: How far apart the starts of two neighbours are.
        grace_ms: How long after its end a window stays open, in stream time.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int

    def __post_init__(self) -> None:
        if self.size_ms < 1:
            raise TopologyError(f"the size of windows is at least 1 ms, not {self.size_ms}")
        if not 1 <= self.advance_ms <= self.size_ms:
            raise TopologyError(
                f"windows advance by 1 ms at least and by their size ({self.size_ms} ms) at most, not by "
                f"{self.advance_ms} ms: records between two windows would be lost"
            )
        if self.grace_ms < 0:
            raise TopologyError(f"the grace of windows is at least 0 ms, not {self.grace_ms}")

    def starts(self, timestamp: int) -> range:
        """Give the starts of the windows that a record belongs to, the earliest first.

        Args:
            timestamp: The record's, ms since the epoch, at least 0.

        Example:
            >>> list(HoppingWindows(1000, 300, grace=0).starts(1250))
            [300, 600, 900, 1200]
        """
        advance = self.advance_ms
        first = timestamp - self.size_ms + advance
        return range(first - first % advance if first > 0 else 0, timestamp + 1, advance)

    def last_closed(self, stream_time: int) -> int:
        """Give the start of the last window that has closed; negative if none has.

        Example:
            >>> windows = TumblingWindows(1000, grace=500)
            >>> windows.last_closed(1499), windows.last_closed(1500)
            (-1000, 0)
        """
        start = stream_time - self.grace_ms - self.size_ms
        return start - start % self.advance_ms if start >= 0 else -self.advance_ms


@checked_constructor
class TumblingWindows(TimeWindows):
    """Windows side by side: every record belongs to one.

    Args:
        size: How long a window is.
        grace: How long after its end a window stays open for records that are out of order.

    Raises:
        TopologyError: If the size is not positive, or the grace negative.

    Source: ``org.apache.kafka.streams.kstream.TimeWindows.ofSizeAndGrace``.

    Example:
        >>> list(TumblingWindows(1000, grace=0).starts(1250))
        [1000]
    """

    def __init__(self, size: Duration, grace: Duration) -> None:
        super().__init__(millis(size), millis(size), millis(grace))


@checked_constructor
class HoppingWindows(TimeWindows):
    """Windows that overlap: every record belongs to ``size / advance`` of them.

    Args:
        size: How long a window is.
        advance: How far apart two neighbours begin.
        grace: How long after its end a window stays open for records that are out of order.

    Raises:
        TopologyError: If the size is not positive, the advance is not between 1 ms and the size, or the grace is negative.

    Source: ``org.apache.kafka.streams.kstream.TimeWindows.advanceBy``.
    """

    def __init__(self, size: Duration, advance: Duration, grace: Duration) -> None:
        super().__init__(millis(size), millis(advance), millis(grace))


@checked_constructor
@dataclass(frozen=True, init=False)
class SessionWindows:
    """Sessions: records of a key that follow each other within a gap.

    A session reaches from its first record to its last, both included. A record joins every session that is no further away
    than the gap, and makes one of them; without any it begins one of its own. A session closes once stream time has passed
    its end by more than gap and grace.

    Args:
        gap: How far apart two records of a session are at most.
        grace: How long after the gap a session stays open for records that are out of order.

    Attributes:
        gap_ms: The gap.
        grace_ms: The grace.

    Raises:
        TopologyError: If the gap is not positive, or the grace negative.

    Source: ``org.apache.kafka.streams.kstream.SessionWindows.ofInactivityGapAndGrace``.
    """

    gap_ms: int
    grace_ms: int

    def __init__(self, gap: Duration, grace: Duration) -> None:
        object.__setattr__(self, "gap_ms", millis(gap))
        object.__setattr__(self, "grace_ms", millis(grace))
        if self.gap_ms < 1:
            raise TopologyError(f"the gap of sessions is at least 1 ms, not {self.gap_ms}")
        if self.grace_ms < 0:
            raise TopologyError(f"the grace of sessions is at least 0 ms, not {self.grace_ms}")


@checked_constructor
@dataclass(frozen=True, init=False)
class SlidingWindows:
    """Windows that slide with the records of a key: each distinct set of records at most a difference apart is one.

    A window reaches from its start to ``start + difference``, both included. There is one that ends at each record, and one
    that starts one ms after each record if it has records. Those that would begin before the epoch are one, which begins
    there. A window closes once stream time has passed its end by more than the grace.

    Args:
        difference: How far apart the records of a window are at most.
        grace: How long after its end a window stays open for records that are out of order.

    Attributes:
        difference_ms: The difference.
        grace_ms: The grace.

    Raises:
        TopologyError: If the difference is not positive, or the grace negative.

    Source: ``org.apache.kafka.streams.kstream.SlidingWindows.ofTimeDifferenceAndGrace`` (KIP-450).
    """

    difference_ms: int
    grace_ms: int

    def __init__(self, difference: Duration, grace: Duration) -> None:
        object.__setattr__(self, "difference_ms", millis(difference))
        object.__setattr__(self, "grace_ms", millis(grace))
        if self.difference_ms < 1:
            raise TopologyError(
                f"the difference of sliding windows is at least 1 ms, not {self.difference_ms}"
            )
        if self.grace_ms < 0:
            raise TopologyError(f"the grace of sliding windows is at least 0 ms, not {self.grace_ms}")
