"""Rate: how many calls may begin in a time, and when the next one may.

A *bucket* holds as many permits as calls may begin at once; it fills evenly. Exact in whole milliseconds: permits are counted
in units of which one permit costs ``per_ms`` and of which ``calls`` arrive per millisecond, so nothing is rounded.
"""

from __future__ import annotations


class Bucket:
    """The permits of one operator.

    Args:
        calls: How many calls may begin per time, and at once.
        per_ms: The time, ms.

    Example:
        >>> bucket = Bucket(2, 1000)
        >>> [bucket.take(0), bucket.take(0), bucket.take(0), bucket.next_ms(0)]
        [True, True, False, 500]
    """

    __slots__ = ("_calls", "_full", "_per", "_then", "_units")

    def __init__(self, calls: int, per_ms: int) -> None:
        self._calls = calls
        self._per = per_ms
        self._full = self._units = calls * per_ms
        self._then: int | None = None

    def next_ms(self, now_ms: int) -> int:
        """Give when a permit will be there: now or later."""
        self._fill(now_ms)
        missing = self._per - self._units
        return now_ms if missing <= 0 else now_ms - (-missing // self._calls)

    def take(self, now_ms: int) -> bool:
        """Take a permit, if there is one."""
        self._fill(now_ms)
        if self._units < self._per:
            return False
        self._units -= self._per
        return True

    def _fill(self, now_ms: int) -> None:
        if self._then is None or now_ms > self._then:
            passed = 0 if self._then is None else now_ms - self._then
            self._units = min(self._units + passed * self._calls, self._full)
            self._then = now_ms
