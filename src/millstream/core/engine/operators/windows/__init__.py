"""Windowed aggregations. Importing this package registers their compilers."""

from __future__ import annotations

from millstream.core.engine.operators.windows import (
    calendar_windows,
    session_columns,
    session_windows,
    sliding,
    time_windows,
    window_columns,
)

__all__ = [
    "calendar_windows",
    "session_columns",
    "session_windows",
    "sliding",
    "time_windows",
    "window_columns",
]
