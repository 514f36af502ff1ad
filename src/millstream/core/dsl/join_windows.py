"""JoinWindows: the maximum distance in time of two records that are joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.core.model.arguments import checked_constructor
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError
from millstream.core.topology.join_nodes import JoinTimes


@checked_constructor
@dataclass(frozen=True)
class JoinWindows:
    """Joins a left record with time t with right records of its key with times from ``t - before`` to ``t + after``, both inclusive.

    In left and outer joins, a record without a partner has its result when stream time exceeds the end of its window by more than
    ``grace``. Each duration is a timedelta, or milliseconds.

    Args:
        before: How much earlier than the left record a right record may be; negative if it must be later.
        after: How much later than the left record a right record may be; negative if it must be earlier.
        grace: How long the window waits for late records.
        unmatched: ``"final"``: a record has either joined results or a result without a partner, never both. ``"early"``: as in
            Kafka Streams, a late record has its result without a partner before the grace period ends, and joined results may
            follow (KAFKA-19536).
        unmatched_interval: Minimum wall-clock time between two checks for records without a partner. 0 checks whenever stream time
            advances; the interval of Kafka Streams is 1000 ms.

    Raises:
        TopologyError: If no record could ever be joined, or a duration is negative that must not be.
        TypeError: If a duration is neither a timedelta nor a number.

    Source: ``org.apache.kafka.streams.kstream.JoinWindows``.

    Example:
        >>> JoinWindows(before=500, after=500, grace=300).times.closes(left=True)
        800
    """

    before: Duration
    after: Duration
    grace: Duration
    unmatched: Literal["final", "early"] = "final"
    unmatched_interval: Duration = 0

    def __post_init__(self) -> None:
        times = self.times
        if times.before + times.after < 0:
            raise TopologyError(
                f"JoinWindows(before={self.before!r}, after={self.after!r}) ends before it begins, so no records would "
                "be joined; before + after must be at least 0"
            )
        for name, value in (("grace", times.grace), ("unmatched_interval", times.interval)):
            if value < 0:
                raise TopologyError(f"JoinWindows: {name} must be at least 0 ms, not {value}")
        if self.unmatched not in ("final", "early"):
            raise TopologyError(f"JoinWindows: unmatched must be 'final' or 'early', not {self.unmatched!r}")

    @property
    def times(self) -> JoinTimes:
        """The windows in milliseconds, for the plan."""
        return JoinTimes(
            millis(self.before),
            millis(self.after),
            millis(self.grace),
            self.unmatched == "final",
            millis(self.unmatched_interval),
        )
