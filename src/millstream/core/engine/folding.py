"""Folding: a known aggregation of many records at once.

A batch is folded onto the entries of its keys without writing to the store; then what came out is written. So each key is read
once and written once per batch, however many records it has. Every record has its own result all the same.

Nothing is lost when a value cannot be folded, or an entry cannot be read: the results end before that record, and what is
written is made of the results.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from millstream.core.model.serdes import Serde
from millstream.core.topology.folds import RECIPES, Fold

Entry = tuple[Any, int]
"""An aggregate and its timestamp."""
Fetch = Callable[[bytes], "Entry | None"]


@dataclass(frozen=True)
class Folded:
    """What came out of a batch.

    Attributes:
        results: Per record the aggregate with it; fewer than records if one could not be folded, which is the next one then.
        timestamps: Per result the largest timestamp of its key so far, ms since the epoch.
        keys: The keys, each once, in the order of their first records.
        numbers: Per record the number of its key.
    """

    results: list[Any]
    timestamps: list[int]
    keys: Sequence[bytes]
    numbers: Sequence[int]

    def first(self, records: int) -> Folded:
        return replace(self, results=self.results[:records], timestamps=self.timestamps[:records])

    def write(self, put: Callable[[bytes, Entry], None]) -> None:
        """Write the last entry of each key that has a result."""
        results = dict(zip(self.numbers, self.results))  # in the order of the numbers
        timestamps = dict(zip(self.numbers, self.timestamps))
        deque(map(put, self.keys, zip(results.values(), timestamps.values())), maxlen=0)


Folding = Callable[[Fetch, Sequence[bytes], Sequence[Any], "list[int]"], Folded]
"""How entries are read, and per record key, value and timestamp, to what comes out."""


def folding(fold: Fold, serde: Serde[Any]) -> Folding:
    """Return the function that folds batches.

    Args:
        serde: Serde of the aggregates; a value that it cannot write cannot be a result.
    """
    return _counted if fold is Fold.COUNT else _Combining(fold, serde).folded


def needs_values(fold: Fold) -> bool:
    return fold is not Fold.COUNT


def _counted(fetch: Fetch, keys: Sequence[bytes], values: Sequence[Any], timestamps: list[int]) -> Folded:
    before = _Before(fetch, keys)
    counts = [0 if entry is None else entry[0] for entry in before.entries]
    results: list[int] = []
    give = results.append
    for number in before.readable():
        counts[number] = counted = counts[number] + 1
        give(counted)
    return before.folded(results, timestamps)


class _Combining:
    """Folds that look at values. Stateless."""

    def __init__(self, fold: Fold, serde: Serde[Any]) -> None:
        recipe = RECIPES[fold]
        self._step, self._zero = recipe.step, recipe.zero
        self._serialize = serde.serialize
        self._known = frozenset(serde.accepts)

    def folded(
        self, fetch: Fetch, keys: Sequence[bytes], values: Sequence[Any], timestamps: list[int]
    ) -> Folded:
        before = _Before(fetch, keys)
        results: list[Any] = []
        give, step, zero, known = results.append, self._step, self._zero, self._known
        so_far = [zero if entry is None else entry[0] for entry in before.entries]
        with suppress(
            Exception
        ):  # the number of results tells which one it was; what it was is found record by record
            for number, value in zip(before.readable(), values):
                old = so_far[number]
                new = value if old is None else step(old, value)
                if type(new) not in known:
                    self._check(new)
                so_far[number] = new
                give(new)
        return before.folded(results, timestamps)

    def _check(self, new: Any) -> None:
        if new is None:
            raise ValueError("a result that deletes the entry")
        self._serialize(new)


class _Before:
    """The keys of a batch as numbers, and their entries before it. Lives as long as the batch.

    Keys are looked up once: comparing bytes that lie all over the memory costs more than all else that is done with them.
    """

    def __init__(self, fetch: Fetch, keys: Sequence[bytes]) -> None:
        numbers: dict[bytes, int] = defaultdict(count().__next__)
        self._numbers = list(map(numbers.__getitem__, keys))
        self._keys = list(numbers)
        self.entries: list[Entry | None] = []
        with suppress(Exception):  # the records before the first unreadable entry are folded
            self.entries.extend(map(fetch, self._keys))

    def readable(self) -> Sequence[int]:
        """Return the numbers of the keys of the records before the first one whose entry could not be read."""
        if len(self.entries) == len(self._keys):
            return self._numbers
        return self._numbers[: self._numbers.index(len(self.entries))]

    def folded(self, results: list[Any], timestamps: list[int]) -> Folded:
        timestamps = self._newest(
            timestamps if len(results) == len(timestamps) else timestamps[: len(results)]
        )
        return Folded(results, timestamps, self._keys, self._numbers)

    def _newest(self, timestamps: list[int]) -> list[int]:
        """Return per record the largest timestamp of its key so far; where time goes forward these are the records' own."""
        stored = max((entry[1] for entry in self.entries if entry is not None), default=-1)
        if timestamps and stored <= timestamps[0] and sorted(timestamps) == timestamps:
            return timestamps
        latest = [-1 if entry is None else entry[1] for entry in self.entries]
        newest: list[int] = []
        for number, timestamp in zip(self._numbers, timestamps):
            if latest[number] > timestamp:
                timestamp = latest[number]
            else:
                latest[number] = timestamp
            newest.append(timestamp)
        return newest
