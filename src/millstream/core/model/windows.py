"""Windows: how a stream is divided by time, and when results are emitted.

A *window* of a fixed size contains the records with ``start <= timestamp < start + size``. Windows lie on a grid that starts at the
epoch: each starts at a multiple of the *advance*. Tumbling windows are adjacent (the advance equals the size); hopping windows overlap.

The *grace period* is how long a window waits for out-of-order records: the window closes once the stream time of its operator has reached
``end + grace``. A record that arrives later is *late* and is dropped from that window. The grace period has no default: a short one loses
data, a long one delays results and keeps state alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.core.model.arguments import checked_constructor, checked_methods
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError


def idle_millis(after: Duration | None) -> int | None:
    """Return how long an input must be idle before the wall clock advances time, in ms; None means never.

    Raises:
        TopologyError: If the duration is not positive.
    """
    if after is None:
        return None
    if millis(after) < 1:
        raise TopologyError(
            f"close_idle_after must be at least 1 ms, not {millis(after)}; with None, windows wait for records"
        )
    return millis(after)


@checked_methods
@dataclass(frozen=True)
class EmitStrategy:
    """Defines when a windowed aggregation emits results.

    Attributes:
        at_close: Whether to emit once per window, when it closes, instead of at every record.
        close_idle_after_ms: Time without records after which the wall clock advances time, ms; None means never.
        every_ms: Minimum wall-clock time between two checks for closed windows, ms; 0 emits each window when it closes.
        loses: Whether windows that expire in the store before a check are lost.

    Source: ``org.apache.kafka.streams.kstream.EmitStrategy`` (KIP-825).
    """

    at_close: bool
    close_idle_after_ms: int | None = None
    every_ms: int = 0
    loses: bool = False

    @property
    def at_once(self) -> bool:
        """Whether each window is emitted by the record that closes it, before that record is added."""
        return self.at_close and not self.every_ms and not self.loses

    @staticmethod
    def on_window_close(
        *,
        every: Duration = 0,
        expired: Literal["given", "lost"] = "given",
        close_idle_after: Duration | None = None,
    ) -> EmitStrategy:
        """Emit one result per window, when it closes.

        Args:
            every: Minimum wall-clock time between two checks for closed windows, each triggered by a record; ``timedelta`` or ms.
                0 emits each window when it closes, independently of the wall clock. The default of Kafka Streams is 1000 ms.
            expired: ``"given"``: no window is lost. ``"lost"``: as in Kafka Streams without caches, the check for closed windows
                follows the record that advanced the time. By then, windows may have expired in the store, if time advanced by more than
                its retention. A session is lost only when its whole slice has expired, at the earliest a minute later.
            close_idle_after: Time without records after which the wall clock advances time, so that the last windows close;
                ``timedelta`` or ms. None waits for records. Kafka Streams has no counterpart.

        Returns:
            The argument ``emit`` of ``windowed_by``.

        Raises:
            TopologyError: If ``every`` is negative, ``expired`` has another value, or ``close_idle_after`` is not positive.

        Source: ``EmitStrategy.onWindowClose`` (KIP-825).

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> windowed = builder.stream("in").group_by_key().windowed_by(
            ...     ms.TumblingWindows(1000, grace=0), emit=ms.EmitStrategy.on_window_close()
            ... )
            >>> windowed.count(store="counts").to_stream(lambda window, _: window.key).to("out", value=ms.serdes.int64)
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp in (0, 999, 1000):
            ...     driver.pipe("in", "k", "v", timestamp)
            >>> [record.value for record in driver.read("out")]
            [2]
        """
        if millis(every) < 0:
            raise TopologyError(f"on_window_close: every must be at least 0 ms, not {millis(every)}")
        if expired not in ("given", "lost"):
            raise TopologyError(f"on_window_close: expired must be 'given' or 'lost', not {expired!r}")
        return EmitStrategy(
            at_close=True,
            close_idle_after_ms=idle_millis(close_idle_after),
            every_ms=millis(every),
            loses=expired == "lost",
        )


on_window_update = EmitStrategy(at_close=False)
"""Emit the current result at every record."""
on_window_close = EmitStrategy.on_window_close()
"""Emit one result per window, when it closes. Only records advance time."""


@dataclass(frozen=True)
class TimeWindows:
    """Windows of a fixed size on a grid. Created as :class:`TumblingWindows` or :class:`HoppingWindows`.

    Attributes:
        size_ms: Length of a window, ms.
        advance_ms: Distance between the starts of consecutive windows, ms.
        grace_ms: Grace period in stream time, ms.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int

    def __post_init__(self) -> None:
        if self.size_ms < 1:
            raise TopologyError(f"the size of windows must be at least 1 ms, not {self.size_ms}")
        if not 1 <= self.advance_ms <= self.size_ms:
            raise TopologyError(
                f"windows must advance by at least 1 ms and at most by their size ({self.size_ms} ms), not by "
                f"{self.advance_ms} ms: records between two windows would be lost"
            )
        if self.grace_ms < 0:
            raise TopologyError(f"the grace of windows must be at least 0 ms, not {self.grace_ms}")

    def starts(self, timestamp: int) -> range:
        """Return the starts of the windows that contain a timestamp, earliest first.

        Args:
            timestamp: Timestamp of a record, ms since the epoch, at least 0.

        Returns:
            The starts, ms since the epoch.

        Source: ``TimeWindows.windowsFor``.

        Example:
            >>> list(HoppingWindows(1000, 300, grace=0).starts(1250))
            [300, 600, 900, 1200]
        """
        advance = self.advance_ms
        first = timestamp - self.size_ms + advance
        return range(first - first % advance if first > 0 else 0, timestamp + 1, advance)

    def last_closed(self, stream_time: int) -> int:
        """Return the start of the last window that has closed; negative if none has.

        Args:
            stream_time: Stream time, ms since the epoch.

        Returns:
            The start, ms since the epoch.

        Example:
            >>> windows = TumblingWindows(1000, grace=500)
            >>> windows.last_closed(1499), windows.last_closed(1500)
            (-1000, 0)
        """
        start = stream_time - self.grace_ms - self.size_ms
        return start - start % self.advance_ms if start >= 0 else -self.advance_ms


@checked_constructor
class TumblingWindows(TimeWindows):
    """Adjacent windows. Every record belongs to exactly one.

    Args:
        size: Length of a window; ``timedelta`` or ms.
        grace: Grace period: how long after its end a window accepts out-of-order records; ``timedelta`` or ms.

    Raises:
        TopologyError: If the size is not positive, or the grace period is negative.

    Source: ``org.apache.kafka.streams.kstream.TimeWindows.ofSizeAndGrace``.

    Example:
        >>> list(TumblingWindows(1000, grace=0).starts(1250))
        [1000]
    """

    def __init__(self, size: Duration, grace: Duration) -> None:
        super().__init__(millis(size), millis(size), millis(grace))


@checked_constructor
class HoppingWindows(TimeWindows):
    """Overlapping windows. Every record belongs to ``size / advance`` of them.

    Args:
        size: Length of a window; ``timedelta`` or ms.
        advance: Distance between the starts of consecutive windows; ``timedelta`` or ms.
        grace: Grace period: how long after its end a window accepts out-of-order records; ``timedelta`` or ms.

    Raises:
        TopologyError: If the size is not positive, the advance is not between 1 ms and the size, or the grace period is negative.

    Source: ``org.apache.kafka.streams.kstream.TimeWindows.advanceBy``.

    Example:
        >>> list(HoppingWindows(1000, 500, grace=0).starts(1250))
        [500, 1000]
    """

    def __init__(self, size: Duration, advance: Duration, grace: Duration) -> None:
        super().__init__(millis(size), millis(advance), millis(grace))


@checked_constructor
@dataclass(frozen=True, init=False)
class SessionWindows:
    """Sessions: records of a key that follow each other within a gap.

    A session lasts from its first record to its last, both inclusive. A record joins every session within the gap and merges them into one;
    if there is none, it starts a new session. A session closes once stream time exceeds its end by more than gap and grace period together.

    Args:
        gap: Maximum time between two successive records of a session; ``timedelta`` or ms.
        grace: Grace period: how long after the gap a session accepts out-of-order records; ``timedelta`` or ms.

    Attributes:
        gap_ms: The gap, ms.
        grace_ms: The grace period, ms.

    Raises:
        TopologyError: If the gap is not positive, or the grace period is negative.

    Source: ``org.apache.kafka.streams.kstream.SessionWindows.ofInactivityGapAndGrace``.

    Example:
        >>> SessionWindows(30_000, grace=0).gap_ms
        30000
    """

    gap_ms: int
    grace_ms: int

    def __init__(self, gap: Duration, grace: Duration) -> None:
        object.__setattr__(self, "gap_ms", millis(gap))
        object.__setattr__(self, "grace_ms", millis(grace))
        if self.gap_ms < 1:
            raise TopologyError(f"the gap of sessions must be at least 1 ms, not {self.gap_ms}")
        if self.grace_ms < 0:
            raise TopologyError(f"the grace of sessions must be at least 0 ms, not {self.grace_ms}")


@checked_constructor
@dataclass(frozen=True, init=False)
class SlidingWindows:
    """Windows that slide with the records of a key: one for each distinct set of records within a time difference.

    A window lasts from its start to ``start + difference``, both inclusive. One window ends at each record, and one starts 1 ms after each
    record, if it contains records. Windows that would start before the epoch are combined into one that starts at the epoch. A window
    closes once stream time exceeds its end by more than the grace period.

    Args:
        difference: Maximum time between the records of a window; ``timedelta`` or ms.
        grace: Grace period: how long after its end a window accepts out-of-order records; ``timedelta`` or ms.

    Attributes:
        difference_ms: The difference, ms.
        grace_ms: The grace period, ms.

    Raises:
        TopologyError: If the difference is not positive, or the grace period is negative.

    Source: ``org.apache.kafka.streams.kstream.SlidingWindows.ofTimeDifferenceAndGrace`` (KIP-450).

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> windowed = builder.stream("in").group_by_key().windowed_by(ms.SlidingWindows(1000, grace=0))
        >>> windowed.count(store="counts").to_stream().to("out")
        >>> driver = ms.testing.TopologyTestDriver(builder.build())
        >>> for timestamp in (2000, 2500):
        ...     driver.pipe("in", "k", "v", timestamp)
        >>> [(record.key.start, record.value) for record in driver.read("out")]
        [(1000, 1), (2001, 1), (1500, 2)]
    """

    difference_ms: int
    grace_ms: int

    def __init__(self, difference: Duration, grace: Duration) -> None:
        object.__setattr__(self, "difference_ms", millis(difference))
        object.__setattr__(self, "grace_ms", millis(grace))
        if self.difference_ms < 1:
            raise TopologyError(
                f"the difference of sliding windows must be at least 1 ms, not {self.difference_ms}"
            )
        if self.grace_ms < 0:
            raise TopologyError(f"the grace of sliding windows must be at least 0 ms, not {self.grace_ms}")
