"""Idle closing: advances the time of an operator by the wall clock while no records arrive.

Only records advance stream time, so the last windows before a pause stay open until the pause ends. An operator that *closes when idle*
counts the pause as time. When no record has arrived for ``idle`` ms, it closes everything that would close if stream time had advanced
with the wall clock since the last record:

    base + (now - last input) >= closing time        base: the operator's time after its last input

The operator's time is then exactly the last of these closing times. It therefore depends only on what has been closed, not on when the
steps of the task ran, and a record for a window that has not been closed is not late.

A repeated micro-batch has the same results: the wall clock is that of the micro-batch, last input and base are part of the task's
snapshot, and a step with input closes nothing by idleness. A pause begins only when there is nothing to process: the task has no buffered
records, no asynchronous operator in front of the operator has unfinished records, no records are left on the broker, and no topic of the
task is paused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.engine.punctuate import NEVER
from millstream.core.state.contract import Memory


class IdleClock:
    """Closes the open windows of an idle operator. Owned by the task, which calls :meth:`step` at the end of each step.

    Args:
        memory: The operator's memory; its entry ``time`` is the operator's time.
        idle_ms: How long the operator must be without input before the wall clock advances its time.
        next_close: Returns the next closing time of the operator, in the operator's time; NEVER if nothing is open.
        close: Closes what is due at a time of the operator, and stores that time as ``time``.

    Attributes:
        wake_at_ms: When the operator must close something if no record arrives, ms since the epoch; None if nothing is open.
    """

    def __init__(
        self,
        memory: Memory,
        idle_ms: int,
        next_close: Callable[[], int],
        close: Callable[[int], None],
    ) -> None:
        self.wake_at_ms: int | None = None
        self._memory = memory
        self._idle = idle_ms
        self._next_close = next_close
        self._close = close
        self._fresh = False

    def watching(self, call: Callable[..., None]) -> Callable[..., None]:
        """Wrap the operator's function to detect input."""

        def watched(*args: Any) -> None:
            self._fresh = True
            call(*args)

        return watched

    def note_input(self) -> None:
        """Report input that did not pass through the operator's function."""
        self._fresh = True

    def step(self, now_ms: int, *, quiet: bool, waits: bool) -> None:
        """End a step of the task.

        Args:
            quiet: True if the task has no buffered records and none of its inputs has more.
            waits: True if records for the operator are unfinished. The step in which they end begins the pause.
        """
        memory = self._memory
        if self._fresh or waits or not quiet or memory.get("input", (now_ms,))[0] > now_ms:
            # If the clock has moved back, the pause begins again. Otherwise it would begin when the clock has caught up.
            memory["input"] = [now_ms, memory.get("time", -1)]
            self._fresh = False
        elif "input" in memory:
            last, base = memory["input"]
            if now_ms - last >= self._idle:
                # One closing time after the other, so that the operator's time ends at the last of them.
                while (close_time := self._next_close()) <= base + now_ms - last and close_time < NEVER:
                    self._close(close_time)
        self.wake_at_ms = None if waits else self._wake_at()

    def _wake_at(self) -> int | None:
        close_time = self._next_close()
        if close_time >= NEVER or "input" not in self._memory:
            return None
        last, base = self._memory["input"]
        return int(last + max(self._idle, close_time - base))
