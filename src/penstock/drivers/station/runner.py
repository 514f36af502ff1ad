"""Runner: makes the calls that the posts of a station begin, on one event loop and a pool of threads.

A coroutine function runs on the event loop. Any other function runs on a thread of its operator's pool; if it gives something to
await, that runs on the event loop. A call that is given up is cancelled; a thread cannot be, so it is left to itself and its
pool gets a new one in its place, which the calls behind it use.

Calls of one key never overlap at order ``key``, but for a thread that goes on after its timeout.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from penstock.core.asynchronous.dispatcher import Start
from penstock.core.asynchronous.station import Answered
from penstock.drivers.station.messages import Question
from penstock.drivers.station.post import Post

_THREADS = 1_024
_PULSE_S = 0.1


def now_ms() -> int:
    """Give the time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def ended_ms() -> int:
    """Give the time as that of an end, ms since the epoch: the next whole one, so that no wait from then on is too short."""
    return -(-time.time_ns() // 1_000_000)


class Runner:
    """Runs the calls of all tasks of a station. Lives on the event loop."""

    def __init__(self) -> None:
        self._posts: dict[str, Post] = {}
        self._tasks: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._threads: set[tuple[str, str, int]] = set()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-call")
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self.loop_lag_ms = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to fetch."""
        return not self._tasks and all(post.idle for post in self._posts.values())

    def ask(self, question: Question, loaded: dict[bytes, Any]) -> Answered:
        """Take in what a task says, and begin what may begin.

        Raises:
            StationError: If the question is of a micro-batch that is over.
        """
        post = self._posts.setdefault(question.task, Post(question.task))
        answered = post.ask(question, loaded, now_ms())
        self._look_soon()
        return replace(answered, loop_lag_ms=self.loop_lag_ms)

    async def pulse(self) -> None:
        """Measure for ever by how much the event loop is late."""
        while True:
            due = time.monotonic() + _PULSE_S
            await asyncio.sleep(_PULSE_S)
            late = round((time.monotonic() - due) * 1000)
            self.loop_lag_ms = max(late, self.loop_lag_ms * 9 // 10)

    def _look_soon(self) -> None:
        """Look for what may begin, once for all that ends in the same turn of the loop."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Give up what takes too long, begin what may begin, and see when to look again."""
        self._soon = False
        now = now_ms()
        for task, post in self._posts.items():
            for operator, number in post.expire(now):
                self._give_up((task, operator, number))
            for operator, start in post.start(now):
                self._begin((task, operator, start.number), start)
        if self._timer is not None:
            self._timer.cancel()
        wakes = [at for post in self._posts.values() if (at := post.wake_at_ms(now)) is not None]
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(min(wakes) - now, 1) / 1000, self._go_on) if wakes else None

    def _begin(self, place: tuple[str, str, int], start: Start) -> None:
        self._tasks[place] = asyncio.get_running_loop().create_task(self._run(place, start))

    async def _run(self, place: tuple[str, str, int], start: Start) -> None:
        try:
            if _is_coroutine(start.calls[0].function):
                result = start.run()
            else:
                self._threads.add(place)
                result = await asyncio.get_running_loop().run_in_executor(self._pool, start.run)
                self._threads.discard(place)
            if inspect.isawaitable(result):
                result = await result
            answers = start.answers(result)
        except Exception as error:
            answers = start.raised(error)
        finally:
            del self._tasks[place]
        self._threads.discard(place)
        task, operator, number = place
        self._posts[task].end(operator, number, answers, ended_ms())
        self._look_soon()

    def _give_up(self, place: tuple[str, str, int]) -> None:
        running = self._tasks.get(place)
        if place in self._threads:
            self._threads.discard(place)
            abandoned, self._pool = (
                self._pool,
                ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-call"),
            )
            abandoned.shutdown(wait=False)
        elif running is not None:
            running.cancel()


def _is_coroutine(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return True
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
