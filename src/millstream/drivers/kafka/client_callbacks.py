"""What callbacks of the client need to know about its pending exception.

After a fatal error, confluent-kafka sets the exception that its call will raise, and then may call back once more, although no Python code
may run while an exception is set. That code fails at its first call of a C function, or clears the exception, so that the client raises a
``SystemError`` without the reason.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

_LINES: Final = logging.getLogger("millstream.librdkafka")
_CHECKED_CALL: Final = partial(len, ())
"""A call that fails if an exception is set. The interpreter calls ``len`` itself without that check."""


def pending_exception() -> BaseException | None:
    """Return the exception that is set while a callback begins, and clear it; None if there is none.

    A callback that got one raises it at its end.
    """
    try:
        _CHECKED_CALL()
    except SystemError as error:
        return error.__cause__
    return None


class ClientLog:
    """Passes the log lines of clients to Python's logging. The client needs the method ``log`` only."""

    def log(self, level: int, line: str, *values: str) -> None:
        pending = pending_exception()
        _LINES.log(level, line, *values, stacklevel=2)  # names the code that called the client
        if pending is not None:
            raise pending
