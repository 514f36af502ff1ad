"""Durations: ``datetime.timedelta`` or int milliseconds at the public face, int milliseconds inside."""

from __future__ import annotations

from datetime import timedelta

Duration = timedelta | int
"""What a user may write where a duration is asked for: a timedelta, or milliseconds as an int."""


def millis(duration: Duration) -> int:
    """Give a duration in milliseconds.

    Args:
        duration: A ``timedelta`` (rounded down to the millisecond) or an int of milliseconds.

    Returns:
        Milliseconds.

    Raises:
        TypeError: For anything else, above all floats, whose unit nobody can guess.

    Example:
        >>> millis(timedelta(seconds=2)), millis(250)
        (2000, 250)
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration
    raise TypeError(f"a duration is a datetime.timedelta or an int of milliseconds, not {duration!r}")


def earliest(*times: int | None) -> int | None:
    """Give the first of several times; None is never.

    Example:
        >>> earliest(None, 7, 5), earliest(None)
        (5, None)
    """
    return min((at for at in times if at is not None), default=None)
