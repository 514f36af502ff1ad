"""Answers: what the function of an asynchronous operator may return instead of a result.

* :func:`retry`: the attempt failed and should be retried later;
* :func:`delay`: it is too early; call the function again at a given time;
* :func:`dead_letter`: no attempt can succeed; send the record to a dead-letter topic;
* :func:`skip`: there is nothing to do for this record.

Mappers of other operators are not checked for such results, because a check would cost time for each record, and a new value may be any
object. Where a predicate or a sink meets one, the error says so (``millstream.core.engine.operators.results``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from millstream.core.model.durations import Duration, not_negative
from millstream.core.model.record import LAST_MS

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class TryAgain:
    """The attempt failed. Created by :func:`retry`. If ``in_ms`` is None, the operator's :class:`Retry` defines the wait."""

    in_ms: int | None = None


@dataclass(frozen=True)
class Later:
    """It is too early. Created by :func:`delay`. Exactly one field is set: a time, or a wait from now, both in ms."""

    until_ms: int | None = None
    in_ms: int | None = None


@dataclass(frozen=True)
class DeadLetter:
    """No attempt can succeed. Created by :func:`dead_letter`.

    Attributes:
        text: As the result of a call, the cause; as ``on_failure`` of an operator, the topic.
    """

    text: str


@dataclass(frozen=True)
class Skip:
    """There is nothing to do for the record. Created by :func:`skip`."""


def retry(in_: Duration | None = None) -> TryAgain:
    """Report that the attempt failed and should be retried.

    Args:
        in_: Wait before the next attempt, ``timedelta`` or ms; 0 counts as 1 ms. None uses the operator's :class:`Retry`. ``Retry``
            also limits the number of attempts; without it, there is no limit.

    Returns:
        A value for the function of an asynchronous operator to return.

    Raises:
        TopologyError: If the wait is negative.

    Source: KIP-311, "Robust failure handling with retries".

    Example:
        >>> retry(in_=500)
        TryAgain(in_ms=500)
    """
    return TryAgain(None if in_ is None else not_negative("retry(in_=...)", in_))


def delay(until: int | datetime | None = None, *, in_: Duration | None = None) -> Later:
    """Report that it is too early for this record. The function is called again at a given time, as the same attempt.

    Args:
        until: Time, as ms since the epoch or a ``datetime`` with a time zone.
        in_: Wait from now, instead of a time; ``timedelta`` or ms, 0 counts as 1 ms.

    Returns:
        A value for the function of an asynchronous operator to return.

    Raises:
        ValueError: Unless exactly one of the two is set, or if a datetime has no time zone.
        TopologyError: If the wait is negative.
        TypeError: If the time has another type, such as the float returned by ``time.time()``, which is in seconds.

    Source: KIP-311, "Delayed processing".

    Example:
        >>> delay(until=1_700_000_000_000)
        Later(until_ms=1700000000000, in_ms=None)
    """
    if (until is None) == (in_ is None):
        raise ValueError("delay() needs until=..., a time, or in_=..., a duration from now")
    if in_ is not None:
        return Later(in_ms=not_negative("delay(in_=...)", in_))
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError(
                f"delay(until={until!r}): a datetime without a time zone is ambiguous; add a time zone"
            )
        until = -(
            (_EPOCH - until) // timedelta(milliseconds=1)
        )  # rounded up, so that the call is never too early
    if not isinstance(until, int) or isinstance(until, bool):
        raise TypeError(
            f"delay(until={until!r}): a time must be an int of ms since the epoch, or a datetime with a time zone"
        )
    if until > LAST_MS:
        raise ValueError(f"delay(until={until}): a time must be at most {LAST_MS} ms since the epoch")
    return Later(until_ms=until)


def dead_letter(text: str) -> DeadLetter:
    """Report that no attempt can succeed, and the cause; or, as ``on_failure`` of an operator, name the dead-letter topic.

    Args:
        text: As the result of a call, the cause. The record goes to the topic of ``on_failure=ms.dead_letter(...)``, or otherwise to
            the topic of the setting ``dead_letter_topic``. As ``on_failure``, the topic.

    Returns:
        A value for the function of an asynchronous operator to return, or for ``on_failure``.

    Source: KIP-1034, for asynchronous operators.

    Example:
        >>> dead_letter("no such customer")
        DeadLetter(text='no such customer')
    """
    return DeadLetter(str(text))


def skip() -> Skip:
    """Report that there is nothing to do for the record. It is dropped and counted as skipped.

    Only asynchronous operators understand this. Elsewhere, such as in ``map_values``, the result is a value like any other: use
    ``filter``, or ``flat_map_values`` with an empty list.

    Returns:
        A value for the function of an asynchronous operator to return.

    Source: KIP-311, for records that need no result.

    Example:
        >>> skip()
        Skip()
    """
    return Skip()
