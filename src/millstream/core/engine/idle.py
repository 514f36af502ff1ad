"""Idle closing: the time of an operator goes on by the wall clock while nothing arrives.

Only records move stream time, so the last windows before a pause stay open for as long as it lasts. An operator that is
asked to *close when idle* treats a pause as time: once nothing has arrived for ``idle`` ms, what would close if stream time
had gone on since the last record as the wall clock has, is closed:

    base + (now - last input) >= when it closes        base: the operator's time after its last input

Then its time is exactly when the last of these closes, not more. So it does not depend on when a task was looked at in
between, only on what has been closed; and a record for something that was not closed is not late.

The wall clock is that of the micro-batches, last input and base are part of the task's snapshot, and a step with input
closes nothing so: a micro-batch that is repeated gives the same again. An input is idle only if there is nothing: while the
task holds records that it has not processed, or some are left on the broker, or a topic of it is paused, the pause has not
begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.engine.punctuate import NEVER
from millstream.core.state.contract import Memory


class IdleClock:
    """Closes what an idle operator has open. Owned by the task.

    Args:
        clocks: The clocks of the task, which asks each of them at the end of a step; this one is added.
        memory: The operator's memory; ``time`` in it is the operator's time.
        idle_ms: How long nothing arrives before the wall clock takes over.
        next_close: Returns when the operator closes something next, in its own time; NEVER if nothing is open.
        close: Closes what closes up to a time of the operator, and remembers that time under ``time``.
    """

    def __init__(
        self,
        clocks: list[IdleClock],
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
        clocks.append(self)

    def watching(self, call: Callable[..., None]) -> Callable[..., None]:
        """Return the operator's function, wrapped to note its input."""

        def watched(*args: Any) -> None:
            self._fresh = True
            call(*args)

        return watched

    def note_input(self) -> None:
        """Note input that did not pass through the operator's function."""
        self._fresh = True

    def step(self, now_ms: int, *, quiet: bool) -> None:
        """End a step of the task.

        Args:
            quiet: Whether the task has nothing left to process.
        """
        memory = self._memory
        if self._fresh or not quiet:
            memory["input"] = [now_ms, memory.get("time", -1)]
            self._fresh = False
        elif "input" in memory:
            last, base = memory["input"]
            if now_ms - last >= self._idle:
                self._close_up_to(base + now_ms - last)
        self.wake_at_ms = self._wake_at()

    def _close_up_to(self, time: int) -> None:
        """Close one moment after the other, so that the operator's time ends at the last of them."""
        while (close_time := self._next_close()) <= time:
            self._close(close_time)

    def _wake_at(self) -> int | None:
        close_time = self._next_close()
        if close_time == NEVER or "input" not in self._memory:
            return None
        last, base = self._memory["input"]
        return int(last + max(self._idle, close_time - base))
