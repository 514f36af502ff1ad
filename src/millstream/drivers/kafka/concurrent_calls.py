"""Calls that wait for a broker, several at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

_THREADS: Final = 16


def call_for_each(call: Callable[[int], object], numbers: Iterable[int]) -> None:
    """Call a function for each number, at most 16 at once, and wait for the calls. After an error, no further call begins.

    The threads are daemons, unlike those of an executor: a call may wait for a broker for minutes, and must not keep a program from exiting
    that its user has interrupted.

    Raises:
        BaseException: The first error of a call.
    """
    waiting = tuple(numbers)
    left, over = iter(waiting), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        for number in left:  # threads can share the iterator of a tuple
            if over.is_set():
                return
            try:
                call(number)
            except BaseException as error:  # raised in the waiting thread
                failures.append(error)
                over.set()

    threads = [
        threading.Thread(target=work, name="millstream-kafka-calls", daemon=True) for _ in waiting[:_THREADS]
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        over.set()
    if failures:
        raise failures[0]
