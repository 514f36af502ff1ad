"""Samples that a thread takes while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def sampling(take: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call a function again and again in a thread, as long as the block runs."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(every_s):
            take()

    thread = threading.Thread(target=sample, name="bench-samples")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
