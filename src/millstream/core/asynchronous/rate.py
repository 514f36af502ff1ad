"""Rate: how many calls may begin in a time, and when the next one may.

The times of the last calls are kept, as many as may begin: the next one may when the first of them is long enough ago. So the
limit holds for *every* stretch of that length, which services with a hard quota ask for; a bucket that refills would let up
to twice as many begin in the first one.
"""

from __future__ import annotations

from collections import deque


class Rate:
    """When the calls of one operator may begin.

    Args:
        calls: How many calls may begin per time.
        per_ms: The time, ms.

    Example:
        >>> rate = Rate(2, 1000)
        >>> [rate.take(0), rate.take(400), rate.take(500), rate.next_ms(500)]
        [True, True, False, 1000]
    """

    __slots__ = ("_begun", "_calls", "_per")

    def __init__(self, calls: int, per_ms: int) -> None:
        self._calls = calls
        self._per = per_ms
        self._begun: deque[int] = deque()

    def next_ms(self, now_ms: int) -> int:
        """Return when the next call may begin: now or later."""
        return now_ms if len(self._begun) < self._calls else max(now_ms, self._begun[0] + self._per)

    def take(self, now_ms: int) -> bool:
        """Note that a call begins, if it may."""
        if self.next_ms(now_ms) > now_ms:
            return False
        if len(self._begun) == self._calls:
            self._begun.popleft()
        self._begun.append(now_ms)
        return True
