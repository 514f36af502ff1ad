"""The log files of standbys, which may share a state directory: each living process has its own.

The names are numbered, and a process takes the first number that no living process has. So the files that processes leave behind are used
again instead of piling up. A lock of the operating system, which ends with its process, shows whether a process lives.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Final

from millstream.drivers.private import locked, make_private
from millstream.edge.checkpoint.disk_space import unwritable

_NAME: Final = "millstream-standby"
_HELD: Final[list[IO[str]]] = []
"""The locks of this process, which it holds until it ends, as it writes to the log until it ends."""


@cache
def standby_log(home: Path) -> Path:
    """Return the log file of this process in an application's directory, which is created if missing.

    Raises:
        SettingsError: If the directory cannot be written.
    """
    try:
        make_private(home)
        return next(file for number in count(1) if _is_taken(file := home / _file(number)))
    except OSError as error:
        raise unwritable(home / _file(1), error) from None


def _file(number: int) -> str:
    return f"{_NAME}.log" if number == 1 else f"{_NAME}-{number}.log"


def _is_taken(file: Path) -> bool:
    """Take the file, and return whether that was possible."""
    lock = locked(file.with_suffix(".lock"))
    if lock is None:
        return False
    _HELD.append(lock)
    return True
