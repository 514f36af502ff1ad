"""Punctuation: public names for the type of time, the callback, and the handle to cancel a schedule."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol


class PunctuationType(Enum):
    """The time that a schedule follows (``PunctuationType``)."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


stream_time = PunctuationType.STREAM_TIME
"""Follow stream time: the timestamps of the records."""
wall_clock = PunctuationType.WALL_CLOCK_TIME
"""Follow wall-clock time."""

Punctuator = Callable[[int], object]
"""Called with the current stream time or wall-clock time in ms (``Punctuator``)."""


class Cancellable(Protocol):
    """A schedule that can be cancelled."""

    def cancel(self) -> None:
        """Stop calling the function."""
