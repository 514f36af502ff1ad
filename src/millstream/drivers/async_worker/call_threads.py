"""Threads of an async worker: they run plain functions.

A running thread cannot be stopped. If its call times out, it is *abandoned*: its call has ended, and another thread is used in its place.
Abandoned threads are limited, too, because a service that hangs would otherwise fill the process with threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

log = logging.getLogger("millstream.task")

THREADS = 1_024
"""How many calls may run on threads."""
ABANDONED = 1_024
"""How many abandoned threads may run. At this limit, no call begins on a thread."""


CallId: TypeAlias = tuple[str, str, int]
"""Identifies a start: task, operator and number."""


class Outcome(NamedTuple):
    """The value that a function returned or the error that it raised. A value, because a future does not accept ``StopIteration``."""

    result: Any = None
    error: BaseException | None = None


def outcome(run: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(run())
    except BaseException as error:
        return Outcome(error=error)


class CallThreads:
    """The threads of an async worker. Used on its event loop only.

    Args:
        on_return: Called on the event loop when an abandoned thread has ended.
    """

    def __init__(self, on_return: Callable[[], None]) -> None:
        # Threads are created when they are needed. There are enough, so that a call that begins never waits for one.
        self._pool = ThreadPoolExecutor(THREADS + ABANDONED, thread_name_prefix="millstream-call")
        self._running: dict[CallId, Future[Outcome]] = {}
        self._on_return = on_return
        self._reserved = 0
        self._abandoned = 0
        self._logged = False

    def reserve(self) -> bool:
        """Reserve a thread for a call that begins. Return False if none is free."""
        if len(self._running) + self._reserved >= THREADS or self._abandoned >= ABANDONED:
            return False
        self._reserved += 1
        return True

    def drop_reservations(self) -> None:
        """Free the threads of calls that did not begin after all, because of a defect."""
        self._reserved = 0

    def start(self, call_id: CallId, run: Callable[[], Any]) -> Future[Outcome]:
        """Run a function on the reserved thread."""
        self._reserved -= 1
        try:
            future = self._pool.submit(outcome, run)
        except RuntimeError as error:  # the system has no more threads
            future = Future()
            future.set_result(Outcome(error=error))
        self._running[call_id] = future
        return future

    def end(self, call_id: CallId) -> None:
        self._running.pop(call_id, None)

    def abandon(self, call_id: CallId) -> None:
        """Abandon the thread of a call that runs on one."""
        future = self._running.pop(call_id, None)
        if future is None or future.cancel() or future.done():
            return
        self._abandoned += 1
        if self._abandoned >= ABANDONED and not self._logged:
            self._logged = True
            log.warning(
                "%d plain functions have timed out and still run on their threads, so no other plain function is called until one of them "
                "ends. Set a timeout in the client that they use",
                self._abandoned,
            )
        loop = asyncio.get_running_loop()

        def on_done(_: Future[Outcome]) -> None:
            with suppress(RuntimeError):  # the async worker, and with it the loop, has ended
                loop.call_soon_threadsafe(self._return)

        future.add_done_callback(on_done)

    def _return(self) -> None:
        self._abandoned -= 1
        self._on_return()
