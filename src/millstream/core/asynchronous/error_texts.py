"""Texts of exceptions. They travel in place of the exception, which may lose its traceback and its class when it is pickled."""

from __future__ import annotations

import traceback
from typing import Final

MAX_TRACEBACK: Final = 10_000
"""Limit of a traceback in characters, because it travels between processes and is stored. The end of a long one is kept."""


def class_of(error: BaseException) -> str:
    """Return the name of an exception's class, with its module."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception; empty if it was not raised in this process."""
    if error.__traceback__ is None:
        return ""
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
