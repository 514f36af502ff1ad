"""Hot keys: which key has most of the records of an operator, and what it allows.

Where a key is called one record at a time, the key that has a share p of all records, with calls of t seconds, allows 1 / (p * t)
records per second in all, however many calls may run at once. To see that, each step of a task tells the first key among a sample
of the records it took in. Here they are added up over steps, the older ones counting less and less.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from millstream.core.runtime.task_report import HotKeySample

_LATELY: Final = 10_000
"""After this many sampled records, all counts are halved."""


@dataclass(frozen=True)
class HotKey:
    """The key that has most of the records lately.

    Attributes:
        key: The key, in short.
        share: Which part of the records it has, from 0 to 1.
        call_ms: How long a call took lately, on average.
        ceiling_per_s: How many records per second, of all keys together, its share allows; None if calls take no time.
    """

    key: str
    share: float
    call_ms: float
    ceiling_per_s: float | None


class HotKeyStatuses:
    """Sums up the samples that a task reports of an operator. Guarded by the lock of its owner.

    Example:
        >>> hot = HotKeyStatuses()
        >>> for key, count in (("'a'", 30), ("'b'", 10), ("'a'", 10)):
        ...     hot.note(HotKeySample("call", key, count, of=100, call_ms=10.0, per_call=1))
        >>> hot.now()
        HotKey(key="'a'", share=0.13333333333333333, call_ms=10.0, ceiling_per_s=750.0)
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._of = 0
        self._last: HotKeySample | None = None

    def note(self, hottest: HotKeySample) -> None:
        """Add the sample of a step."""
        self._last = hottest
        self._counts[hottest.key] += hottest.records
        self._of += hottest.of
        if self._of > _LATELY:
            self._of //= 2
            self._counts = Counter({key: n // 2 for key, n in self._counts.items() if n > 1})

    def now(self) -> HotKey | None:
        """Return the most frequent key; None before the first record with a key."""
        if self._last is None or not self._counts:
            return None
        ((key, count),) = self._counts.most_common(1)
        share, last = count / self._of, self._last
        ceiling = 1_000 * last.per_call / (share * last.call_ms) if last.call_ms else None
        return HotKey(key, share, last.call_ms, ceiling)
