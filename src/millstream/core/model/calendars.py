"""User-defined windows: days and months of a calendar, shifts, or one window that never ends.

Windows of a fixed size lie on a grid that starts at the epoch. Months and days on which the clocks change do not. Here, a function
returns the windows that contain a timestamp. Grace period, late records, window close and stores work as for windows of a fixed size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from millstream.core.model.arguments import checked_constructor
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError

NO_END: Final = (1 << 63) - 1
"""End of a window that never ends, ms since the epoch, as in Kafka Streams."""


class Windows(ABC):
    """Base class of user-defined windows: a subclass returns the windows that contain a timestamp.

    The windows must depend only on the timestamp, and a window that starts later than another must not end earlier.

    Args:
        size: Length of the longest window; ``timedelta`` or ms.
        grace: Grace period: how long after its end a window accepts out-of-order records; ``timedelta`` or ms.

    Attributes:
        size_ms: Length of the longest window, ms.
        grace_ms: Grace period in stream time, ms.

    Raises:
        TopologyError: If the size is not positive, or the grace period is negative.

    Source: ``org.apache.kafka.streams.kstream.Windows``.

    Example:
        >>> import millstream as ms
        >>> class Weeks(ms.Windows):  # which begin on Mondays, in UTC
        ...     def windows_for(self, timestamp):
        ...         day = 86_400_000
        ...         start = (timestamp - 4 * day) // (7 * day) * 7 * day + 4 * day
        ...         return [(start, start + 7 * day)]
        >>> weeks = Weeks(7 * 86_400_000, grace=0)
        >>> list(weeks.windows_for(1_000_000_000))
        [(950400000, 1555200000)]
    """

    size_ms: int
    grace_ms: int

    def __init__(self, size: Duration, grace: Duration) -> None:
        self.size_ms = millis(size)
        self.grace_ms = millis(grace)
        if self.size_ms < 1:
            raise TopologyError(f"the size of windows must be at least 1 ms, not {self.size_ms}")
        if self.grace_ms < 0:
            raise TopologyError(f"the grace of windows must be at least 0 ms, not {self.grace_ms}")

    @abstractmethod
    def windows_for(self, timestamp: int) -> Iterable[tuple[int, int]]:
        """Return the windows that contain a timestamp, earliest first; empty if there are none.

        Args:
            timestamp: Timestamp of a record, ms since the epoch, at least 0.

        Returns:
            Pairs of start (inclusive, at least 0) and end (exclusive), ms since the epoch.

        Source: ``Windows.windowsFor``. For an example, see :class:`Windows`.
        """

    def end_of(self, start: int) -> int:
        """Return the end of the window that starts at a time.

        Args:
            start: Start of the window, ms since the epoch.

        Returns:
            The end, ms since the epoch, exclusive.

        Raises:
            TopologyError: If no window starts at that time.
        """
        for first, end in self.windows_for(start):
            if first == start:
                return end
        raise TopologyError(
            f"{type(self).__name__}.windows_for({start}) does not return the window that begins there; a window contains its start, "
            "and the windows must not change between two starts of an application"
        )

    def checked(self, timestamp: int) -> list[tuple[int, int]]:
        """Return the checked result of :meth:`windows_for`.

        Args:
            timestamp: Timestamp of a record, ms since the epoch.

        Raises:
            ValueError: If a window does not contain the timestamp, or is longer than ``size``.
        """
        found = list(self.windows_for(timestamp))
        for start, end in found:
            if not 0 <= start <= timestamp < end or end - start > self.size_ms:
                raise ValueError(
                    f"{type(self).__name__}.windows_for({timestamp}) returned the window from {start} to {end}; a window must contain "
                    f"the timestamp, begin at 0 or later, and be {self.size_ms} ms long at most, the size that was passed to its constructor"
                )
        return found


@checked_constructor
class UnlimitedWindows(Windows):
    """A single window that starts at a time and never ends; records before it are dropped.

    Args:
        start: Start of the window, ms since the epoch.

    Raises:
        TopologyError: If the start is negative.

    Source: ``org.apache.kafka.streams.kstream.UnlimitedWindows``.

    Example:
        >>> UnlimitedWindows(5).windows_for(5)
        [(5, 9223372036854775807)]
        >>> UnlimitedWindows(5).windows_for(4)
        []
    """

    def __init__(self, start: int = 0) -> None:
        super().__init__(NO_END, 0)
        if start < 0:
            raise TopologyError(f"an unlimited window must begin at 0 or later, not at {start}")
        self.start_ms = start

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        """Return the window if it contains the timestamp. For an example, see :class:`UnlimitedWindows`.

        Args:
            timestamp: Timestamp of a record, ms since the epoch.
        """
        return [(self.start_ms, NO_END)] if timestamp >= self.start_ms else []
