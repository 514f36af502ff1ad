"""Runs the calls of asynchronous operators in a test: in this thread, and on the clock of the test.

Plain functions are called immediately. Coroutines run in an event loop whose clock is the driver's wall clock, which stands still until
the test advances it. ``asyncio.sleep(10)`` in a call ends when the test has advanced the clock by ten seconds, and takes no real time.

As on Spark, a function receives copies of its arguments, and the task a copy of the result. A call that ends with ``SystemExit``, or is
cancelled, has failed.
"""

from __future__ import annotations

import asyncio
import pickle
import selectors
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from importlib.util import find_spec
from inspect import isawaitable
from typing import Any, Final, cast

from millstream.core.asynchronous.call import Call, Done, Settled, Start, Ticket
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.model.calls import Calls
from millstream.core.model.ids import TaskId
from millstream.drivers.async_worker.worker_messages import dumped, received

_CLOSE_ENOUGH = 1e-7
"""Tolerance for accumulated floating-point times, in seconds."""

_COPIES: Final = find_spec("pyspark") is not None
"""Whether arguments and results can be copied as on Spark: cloudpickle is part of pyspark."""

_At = tuple[TaskId, str]
"""A task and the name of an asynchronous operator in it."""


class ManualAsyncWorker:
    """Executes the calls of all tasks of a test driver.

    Args:
        now_ms: The wall clock at the start, ms since the epoch.
    """

    def __init__(self, now_ms: int) -> None:
        self._dispatchers: dict[_At, Dispatcher] = {}
        self._loop = _ManualLoop(_Selector(), now_ms)
        self._running: dict[tuple[_At, int], asyncio.Future[Any]] = {}

    def add(self, task: TaskId, operators: Mapping[str, Calls]) -> None:
        for name, calls in operators.items():
            seed = str((task.subtopology, name))
            self._dispatchers[task, name] = Dispatcher(calls, seed=seed)

    @property
    def now_ms(self) -> int:
        return self._loop.now_ms

    def offer(self, task: TaskId, calls: Iterable[Call]) -> None:
        for call in calls:
            own = call._replace(args=_copy(call.args))
            self._dispatchers[task, call.ticket.operator].offer(own, self.now_ms)

    def work(self) -> list[tuple[TaskId, Ticket, Settled]]:
        """Run calls as far as possible without advancing the clock; return the settled calls with their tasks."""
        begun = True
        while begun:
            begun = False
            for operator, dispatcher in self._dispatchers.items():
                for expired in dispatcher.expire(self.now_ms):
                    self._running[operator, expired].cancel()
                for start in dispatcher.start(self.now_ms):
                    begun = True
                    self._begin(operator, dispatcher, start)
            self._loop.run_to(self.now_ms)
        return list(self._take_settled())

    def advance(self, to_ms: int) -> None:
        """Advance the clock until a call ends or a dispatcher is due, at most to ``to_ms``."""
        wakes = [
            due_ms
            for each in self._dispatchers.values()
            if (due_ms := each.wake_at_ms(self.now_ms)) is not None
        ]
        self._loop.run_to(max(self.now_ms, min([to_ms, *wakes])))

    def close(self) -> None:
        for future in self._running.values():
            future.cancel()
        self._loop.run_to(self.now_ms)
        self._loop.close()

    def _begin(self, operator: _At, dispatcher: Dispatcher, start: Start) -> None:
        try:
            result = start.run()
        except KeyboardInterrupt:  # of the person who runs the test
            raise
        except BaseException as error:
            dispatcher.end(start.number, start.raised(error), self.now_ms)
            return
        if not isawaitable(result):
            dispatcher.end(start.number, start.answers(result), self.now_ms)
            return

        def on_done(future: asyncio.Future[Any]) -> None:
            del self._running[operator, start.number]
            answers = start.raised(asyncio.CancelledError()) if future.cancelled() else future.result()
            dispatcher.end(start.number, answers, self.now_ms)
            self._loop.stop()

        future = self._loop.create_task(_answers(start, result))
        self._running[operator, start.number] = future
        future.add_done_callback(on_done)

    def _take_settled(self) -> Iterator[tuple[TaskId, Ticket, Settled]]:
        for (task, _), dispatcher in self._dispatchers.items():
            for ticket, settled in dispatcher.take_settled():
                yield task, ticket, _received(ticket, settled)


async def _answers(start: Start, result: Awaitable[Any]) -> list[Any]:
    try:
        return start.answers(await result)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return start.raised(error)


def _copy(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", pickle.loads(dumped(args))) if _COPIES else args


def _received(ticket: Ticket, settled: Settled) -> Settled:
    """Return a result as a task on Spark receives it. A failure keeps its exception, whose traceback helps in a test."""
    return received(ticket, settled) if _COPIES and isinstance(settled, Done) else settled


class _Selector(selectors.DefaultSelector):
    """A selector that moves the clock of its loop instead of waiting."""

    loop: _ManualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready events; if there are none, move the clock instead of waiting."""
        ready = super().select(0)
        if not ready and timeout != 0:
            self.loop.pass_time(timeout)
        return ready


class _ManualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits. Its clock starts at 0 s, because large floating-point times would lose milliseconds."""

    def __init__(self, selector: _Selector, now_ms: int) -> None:
        self._begin_ms = now_ms
        self._passed = 0.0
        self._until = 0.0
        super().__init__(selector)
        selector.loop = self

    @property
    def now_ms(self) -> int:
        return self._begin_ms + round(self._passed * 1000)

    def time(self) -> float:
        return self._passed

    def pass_time(self, timeout: float | None) -> None:
        """Move the clock to the next timer if it is due within the limit; otherwise stop."""
        if timeout is None or self._passed + timeout > self._until + _CLOSE_ENOUGH:
            self._passed = self._until
            self.stop()
        else:
            self._passed += timeout

    def run_to(self, now_ms: int) -> None:
        """Run ready callbacks, and timers up to a time. A call to ``stop`` ends the run earlier.

        If the thread already runs another event loop, as in notebooks and asynchronous tests, another thread runs this one.
        """
        self._until = (now_ms - self._begin_ms) / 1000
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.run_forever()
        else:
            with ThreadPoolExecutor(1, "millstream-calls") as thread:
                thread.submit(copy_context().run, self.run_forever).result()
