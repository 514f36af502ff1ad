"""Folding: a known aggregation of many records at once.

A batch is folded onto the entries of its keys without writing to the store; then what came out is written. So each key is read
once and written once per batch, however many records it has. Every record has its own result all the same.

Nothing is lost when a value cannot be folded, or an entry cannot be read: the results end before that record, and what is
written is made of the results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock.core.model.serdes import Serde
from penstock.core.plan.folds import RECIPES, Fold

Entry = tuple[Any, int]
"""An aggregate and its timestamp."""
Fetch = Callable[[bytes], "Entry | None"]
"""Gives the entry of a key, None if there is none."""


@dataclass(frozen=True)
class Folded:
    """What came out of a batch.

    Attributes:
        results: Per record the aggregate with it; fewer than records if one could not be folded, which is the next one then.
        timestamps: Per result the largest timestamp of its key so far, ms since the epoch.
    """

    results: list[Any]
    timestamps: list[int]

    def first(self, number: int) -> Folded:
        """Give what came out of the first records."""
        return Folded(self.results[:number], self.timestamps[:number])

    def write(self, keys: Iterable[bytes], put: Callable[[bytes, Entry], None]) -> None:
        """Write the last entry of each key.

        Args:
            keys: Per record its key.
            put: Writes an entry.
        """
        results = dict(zip(keys, self.results))
        timestamps = dict(zip(keys, self.timestamps))  # in the same order
        deque(map(put, results, zip(results.values(), timestamps.values())), maxlen=0)


Folding = Callable[[Fetch, Sequence[bytes], Sequence[Any], "list[int]"], Folded]
"""How entries are read, and per record key, value and timestamp, to what comes out."""


def folding(fold: Fold, serde: Serde[Any]) -> Folding:
    """Give the function that folds batches.

    Args:
        fold: The aggregation.
        serde: Serde of the aggregates; one that it does not write cannot be a result.
    """
    return _counted if fold is Fold.COUNT else _Combining(fold, serde).folded


def needs_values(fold: Fold) -> bool:
    """Tell whether a fold looks at the values."""
    return fold is not Fold.COUNT


def _counted(fetch: Fetch, keys: Sequence[bytes], values: Sequence[Any], timestamps: list[int]) -> Folded:
    before = _Before(fetch)
    keys = before.read(keys)
    counts = {key: 0 if entry is None else entry[0] for key, entry in before.entries.items()}
    results: list[int] = []
    give = results.append
    for key in keys:
        counts[key] = number = counts[key] + 1
        give(number)
    return Folded(results, before.newest(keys, timestamps[: len(results)]))


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
        before = _Before(fetch)
        keys = before.read(keys)
        results: list[Any] = []
        give, step, zero, known = results.append, self._step, self._zero, self._known
        so_far = {key: zero if entry is None else entry[0] for key, entry in before.entries.items()}
        with suppress(
            Exception
        ):  # the number of results tells which one it was; what it was is found record by record
            for key, value in zip(keys, values):
                old = so_far[key]
                new = value if old is None else step(old, value)
                if type(new) not in known:
                    self._check(new)
                so_far[key] = new
                give(new)
        return Folded(results, before.newest(keys, timestamps[: len(results)]))

    def _check(self, new: Any) -> None:
        if new is None:
            raise ValueError("a result that deletes the entry")
        self._serialize(new)


class _Before:
    """The entries of keys before a batch. Lives as long as the batch."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self.entries: dict[bytes, Entry | None] = {}

    def read(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """Read the entries, each once; give the keys before the first one whose entry cannot be read."""
        distinct = dict.fromkeys(keys)
        found: list[Entry | None] = []
        try:
            found.extend(map(self._fetch, distinct))
        except Exception:  # found again record by record
            keys = keys[: keys.index(next(islice(distinct, len(found), None)))]
        self.entries = dict(zip(distinct, found))
        return keys

    def newest(self, keys: Sequence[bytes], timestamps: list[int]) -> list[int]:
        """Give per record the largest timestamp of its key so far; where time goes forward these are the records' own."""
        stored = max((entry[1] for entry in self.entries.values() if entry is not None), default=-1)
        if timestamps and stored <= timestamps[0] and sorted(timestamps) == timestamps:
            return timestamps
        latest = {key: -1 if entry is None else entry[1] for key, entry in self.entries.items()}
        newest: list[int] = []
        for key, timestamp in zip(keys, timestamps):
            if latest[key] > timestamp:
                timestamp = latest[key]
            else:
                latest[key] = timestamp
            newest.append(timestamp)
        return newest
