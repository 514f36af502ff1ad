"""The calls of asynchronous operators in a test: they run in this thread, and their time is the test's.

Plain functions are called on the spot. Coroutines run in an event loop whose clock is the wall clock of the driver: it stands
still until the test moves it. ``asyncio.sleep(10)`` in a call ends when the test has advanced the clock by ten seconds, and
takes no time at all.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from inspect import isawaitable
from typing import Any

from millstream.core.asynchronous.call import Call, Settled, Ticket
from millstream.core.asynchronous.dispatcher import Dispatcher, Start
from millstream.core.model.calls import Calls
from millstream.core.model.ids import TaskId

_CLOSE_ENOUGH = 1e-7
"""Seconds: what adding up floating-point times may be off by."""

_At = tuple[TaskId, str]
"""A task and the name of an asynchronous operator in it."""


class ManualStation:
    """Executes the calls of all tasks of a test driver.

    Args:
        now_ms: The time, ms since the epoch.
    """

    def __init__(self, now_ms: int) -> None:
        self._dispatchers: dict[_At, Dispatcher] = {}
        self._loop = _ManualLoop(_Selector(), now_ms)
        self._running: dict[tuple[_At, int], asyncio.Future[Any]] = {}

    def add(self, task: TaskId, operators: Mapping[str, Calls]) -> None:
        """Execute the calls of a task, too, whose asynchronous operators have these options."""
        for name, calls in operators.items():
            seed = str((task.subtopology, name))
            self._dispatchers[task, name] = Dispatcher(calls, seed=seed)

    @property
    def now_ms(self) -> int:
        """The time, ms since the epoch."""
        return self._loop.now_ms

    def offer(self, task: TaskId, calls: Iterable[Call]) -> None:
        """Take in what a task issues."""
        for call in calls:
            self._dispatchers[task, call.ticket.operator].offer(call, self.now_ms)

    def work(self) -> list[tuple[TaskId, Ticket, Settled]]:
        """Do what can be done without time going on; return what has been settled, with its task."""
        begun = True
        while begun:
            begun = False
            for at, dispatcher in self._dispatchers.items():
                for expired in dispatcher.expire(self.now_ms):
                    self._running[at, expired].cancel()
                for start in dispatcher.start(self.now_ms):
                    begun = True
                    self._begin(at, dispatcher, start)
            self._loop.run_to(self.now_ms)
        return list(self._settled())

    def advance(self, to_ms: int) -> None:
        """Let time go on until a call has ended, a dispatcher has something to do, or it is a time."""
        wakes = [
            at for each in self._dispatchers.values() if (at := each.wake_at_ms(self.now_ms)) is not None
        ]
        self._loop.run_to(max(self.now_ms, min([to_ms, *wakes])))

    def close(self) -> None:
        """Give up what still runs."""
        for future in self._running.values():
            future.cancel()
        self._loop.run_to(self.now_ms)
        self._loop.close()

    def _begin(self, at: _At, dispatcher: Dispatcher, start: Start) -> None:
        try:
            result = start.run()
        except (Exception, asyncio.CancelledError) as error:
            dispatcher.end(start.number, start.raised(error), self.now_ms)
            return
        if not isawaitable(result):
            dispatcher.end(start.number, start.answers(result), self.now_ms)
            return

        def ended(future: asyncio.Future[Any]) -> None:
            del self._running[at, start.number]
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise error
            answers = start.answers(future.result()) if error is None else start.raised(error)
            dispatcher.end(start.number, answers, self.now_ms)
            self._loop.stop()

        future = self._loop.create_task(_awaited(result))
        self._running[at, start.number] = future
        future.add_done_callback(ended)

    def _settled(self) -> Iterator[tuple[TaskId, Ticket, Settled]]:
        for (task, _), dispatcher in self._dispatchers.items():
            for ticket, settled in dispatcher.take_settled():
                yield task, ticket, settled


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


class _Selector(selectors.DefaultSelector):
    """Where an event loop would wait for time to pass: here it asks its loop to move the clock."""

    loop: _ManualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready; if nothing is, let time pass in place of waiting for it."""
        ready: list[Any] = super().select(0)
        if not ready and timeout != 0:
            self.loop.pass_time(timeout)
        return ready


class _ManualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits. Its clock starts at 0 s, so that milliseconds do not get lost in large numbers."""

    def __init__(self, selector: _Selector, now_ms: int) -> None:
        self._begin_ms = now_ms
        self._passed = 0.0
        self._until = 0.0
        super().__init__(selector)
        selector.loop = self

    @property
    def now_ms(self) -> int:
        """The time, ms since the epoch."""
        return self._begin_ms + round(self._passed * 1000)

    def time(self) -> float:
        """Return the loop's time, s."""
        return self._passed

    def pass_time(self, timeout: float | None) -> None:
        """Move the clock to where the next timer is, if that is allowed; else stop."""
        if timeout is None or self._passed + timeout > self._until + _CLOSE_ENOUGH:
            self._passed = self._until
            self.stop()
        else:
            self._passed += timeout

    def run_to(self, now_ms: int) -> None:
        """Run what is ready, and timers up to a time; stop early when somebody calls ``stop``.

        The thread may run an event loop already, as that of a notebook does, and of an asynchronous test.
        """
        self._until = (now_ms - self._begin_ms) / 1000
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            self.run_forever()
        finally:
            asyncio._set_running_loop(outer)
