"""Names of punctuation that programs use: which time a schedule follows, what it calls, how it is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol


class PunctuationType(Enum):
    """Which time a schedule follows (``PunctuationType``)."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


stream_time = PunctuationType.STREAM_TIME
"""Follow stream time: the timestamps of the records."""
wall_clock = PunctuationType.WALL_CLOCK_TIME
"""Follow the wall clock."""

Punctuator = Callable[[int], object]
"""Called with the current stream time or wall-clock time in ms (``Punctuator``)."""


class Cancellable(Protocol):
    """A schedule that can be ended."""

    def cancel(self) -> None:
        """Do not call the function again."""
