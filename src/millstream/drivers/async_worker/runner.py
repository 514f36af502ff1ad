"""Runner: executes the calls of an async worker's sessions, on one event loop and on threads.

Coroutine functions run on the event loop. Other functions run on a thread, and begin only when one is free. If they return an awaitable,
it runs on the event loop. A call that times out is cancelled. A running thread cannot be cancelled, so it is abandoned.

At order ``key``, calls of one key never overlap, except with a thread that continues after its timeout.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import Call, Start
from millstream.drivers.async_worker.call_threads import CallId, CallThreads, Outcome
from millstream.drivers.async_worker.task_session import Session
from millstream.drivers.async_worker.worker_messages import WorkerQuestion

log = logging.getLogger("millstream.task")

_PULSE_S = 0.1
TIMES_IDLE: Final = 3
"""How many times as long an async worker or a session with work left waits for a question."""


_EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now_ms() -> int:
    """Return the time by a monotonic clock, in ms since the epoch."""
    return (_EPOCH_NS + time.monotonic_ns()) // 1_000_000


def ended_ms() -> int:
    """Return the time rounded up, in ms since the epoch, so that no wait based on it is too short."""
    return -(-(_EPOCH_NS + time.monotonic_ns()) // 1_000_000)


class Runner:
    """Runs the calls of all tasks of an async worker on its event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._tasks: dict[CallId, asyncio.Task[None]] = {}
        """The running calls. The code that removes a call also ends it."""
        self._threads = CallThreads(self._look_soon)
        self._given_up: set[asyncio.Task[None]] = set()
        """Cancelled calls that still run. The event loop keeps no references to its tasks."""
        self._defective: set[str] = set()
        """Tasks whose sessions have failed."""
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._closed = False
        self.loop_lag_ms = 0

    @property
    def idle(self) -> bool:
        return not self._tasks and all(session.idle for session in self._sessions.values())

    def ask(self, question: WorkerQuestion, loaded: dict[bytes, Any]) -> Answered:
        """Process a question and start the calls that may begin.

        Raises:
            AsyncWorkerError: If the question belongs to an earlier micro-batch.
        """
        session = self._sessions.setdefault(question.task, Session(question.task))
        answered = session.ask(question, loaded, now_ms())
        self._look_soon()
        return replace(answered, loop_lag_ms=self.loop_lag_ms)

    def drop_unasked(self, idle_s: float) -> None:
        """Drop the sessions of tasks that have not asked for so long that they are elsewhere. Their tickets are lost.

        Args:
            idle_s: Seconds without a question after which an idle session is dropped. One with work left waits longer.
        """
        now = now_ms()
        for task, session in list(self._sessions.items()):
            patience_ms = idle_s * 1000 * (1 if session.idle else TIMES_IDLE)
            if now - session.asked_ms <= patience_ms or now <= session.lease_ends_ms:
                continue
            for call_id in [call_id for call_id in self._tasks if call_id[0] == task]:
                self._give_up(call_id)
            del self._sessions[task]
            self._defective.discard(task)

    async def pulse(self) -> None:
        """Measure the delay of the event loop. Runs until cancelled."""
        while True:
            due = time.monotonic() + _PULSE_S
            await asyncio.sleep(_PULSE_S)
            late = round((time.monotonic() - due) * 1000)
            self.loop_lag_ms = max(late, self.loop_lag_ms * 9 // 10)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look_soon(self) -> None:
        """Schedule one check for all calls that end in the same iteration of the loop."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Time out calls, start those that may begin, and schedule the next check."""
        self._soon = False
        if self._closed:
            return
        now, loop = now_ms(), asyncio.get_running_loop()
        if self._sessions:  # sessions take turns to be the first to get a thread
            first = next(iter(self._sessions))
            self._sessions[first] = self._sessions.pop(first)
        wakes = [wake_ms for task in self._sessions if (wake_ms := self._advance(task, now)) is not None]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(max(min(wakes) - now, 1) / 1000, self._go_on) if wakes else None

    def _advance(self, task: str, now: int) -> int | None:
        """Advance the session of a task, and return when to do so again, in ms since the epoch.

        A defect of one session must not stop the others. It is logged once, because it may repeat at every check.
        """
        session = self._sessions[task]
        try:
            for operator, number in session.expire(now):
                self._give_up((task, operator, number))
            for operator, start in session.start(now, self._reserve):
                self._begin((task, operator, start.number), start)
            return session.wake_at_ms(now)
        except Exception:
            self._threads.drop_reservations()
            if task not in self._defective:
                self._defective.add(task)
                log.exception("the calls of task %s cannot be started", task)
            return None

    def _reserve(self, call: Call) -> bool:
        return _is_coroutine(call.function) or self._threads.reserve()

    def _begin(self, call_id: CallId, start: Start) -> None:
        on_loop = _is_coroutine(start.calls[0].function)
        thread = None if on_loop else self._threads.start(call_id, start.run)
        self._tasks[call_id] = asyncio.get_running_loop().create_task(self._run(call_id, start, thread))

    async def _run(self, call_id: CallId, start: Start, thread: Future[Outcome] | None) -> None:
        error: BaseException | None = None
        try:
            if thread is None:
                result = start.run()
            else:
                result, error = await self._returned(call_id, thread)
            if inspect.isawaitable(result):
                result = await result
            answers = start.answers(result) if error is None else start.raised(error)
        except BaseException as raised:
            # Any exception of a call is its answer. It must not end the async worker.
            answers = start.raised(raised)
        if self._tasks.pop(call_id, None) is None:
            return
        task, operator, number = call_id
        self._sessions[task].end(operator, number, answers, ended_ms())
        self._look_soon()

    async def _returned(self, call_id: CallId, thread: Future[Outcome]) -> Outcome:
        try:
            return await asyncio.wrap_future(thread)
        finally:
            self._threads.end(call_id)

    def _give_up(self, call_id: CallId) -> None:
        task = self._tasks.pop(call_id, None)
        if task is None:
            return
        self._given_up.add(task)
        task.add_done_callback(self._given_up.discard)
        self._threads.abandon(call_id)
        task.cancel()
        self._look_soon()  # a session that waited for a thread may have had its turn before


def _is_coroutine(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return True
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
