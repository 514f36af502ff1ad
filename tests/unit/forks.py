"""A child of the test process, as a process pool of a user's program has."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def forked_child() -> Iterator[None]:
    """Fork a child that runs until the end of the block."""
    runs, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tells, b"!")
        signal.pause()
        os._exit(0)
    try:
        os.read(runs, 1)
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(runs)
        os.close(tells)
