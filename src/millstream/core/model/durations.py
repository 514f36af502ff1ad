"""Durations: ``datetime.timedelta`` or int milliseconds in the public API, int milliseconds internally."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from millstream.core.model.errors import TopologyError

Duration = timedelta | int
"""A duration as users pass it: a timedelta, or an int of milliseconds."""


def millis(duration: Duration) -> int:
    """Return a duration in milliseconds.

    Args:
        duration: A ``timedelta`` (rounded down to the millisecond) or an int of milliseconds.

    Raises:
        TypeError: For any other type, in particular float, whose unit is ambiguous.
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration
    raise TypeError(f"a duration must be a datetime.timedelta or an int of milliseconds, not {duration!r}")


def since_epoch_ms(time: datetime) -> int:
    """Return a time in ms since the epoch, rounded down. Without a time zone, it is in UTC."""
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return millis(zoned - datetime(1970, 1, 1, tzinfo=UTC))


def earliest(*times: int | None) -> int | None:
    """Return the earliest of several times; None means never."""
    return min((time for time in times if time is not None), default=None)


def not_negative(what: str, duration: Duration) -> int:
    """Return a duration in milliseconds."""
    ms = millis(duration)
    if ms < 0:
        raise TopologyError(f"{what} must not be negative, but is {duration!r}")
    return ms
