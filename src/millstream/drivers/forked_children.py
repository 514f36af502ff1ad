"""Files that children of the program must not keep open.

A child that the user's program forks, such as a process pool, inherits the open files and may outlive the program. A lock on such a file
would last as long as the child, and a process that ends with its standard input would not end.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, Any
from weakref import WeakSet

_FILES: WeakSet[IO[Any]] = WeakSet()


def close_in_children(file: IO[Any]) -> None:
    """Close a file in each child that is forked from now on. Adding a file twice is harmless."""
    _FILES.add(file)


def _close_all() -> None:
    for file in tuple(_FILES):
        with suppress(OSError):
            file.close()


os.register_at_fork(after_in_child=_close_all)
