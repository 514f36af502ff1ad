"""Folding: a known aggregation of many records at once.

The entries that the keys of a batch have in a store are read first, each once; then the batch is folded onto them without the
store; then what came out is written, each key once. Every record has its own result all the same.

Nothing is lost when a value cannot be folded: the results end before it, and what is written is made of the results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from penstock.core.model.serdes import Serde
from penstock.core.plan.folds import RECIPES, Fold

Entry = tuple[Any, int]
"""An aggregate and its timestamp."""
Before = Mapping[bytes, "Entry | None"]
"""The entries of keys before a batch, None where there is none."""


@dataclass(frozen=True)
class Folded:
    """What came out of a batch.

    Attributes:
        results: Per record the aggregate with it; fewer than records if one could not be folded, which is the next one then.
        timestamps: Per record the largest timestamp of its key so far, ms since the epoch; as many as records.
    """

    results: list[Any]
    timestamps: list[int]

    def entries(self, keys: Sequence[bytes]) -> dict[bytes, Entry]:
        """Give the last entry of each key."""
        return dict(zip(keys, zip(self.results, self.timestamps)))


Folding = Callable[[Before, Sequence[bytes], Sequence[Any], list[int]], Folded]
"""Entries before, and per record key, value and timestamp, to what comes out."""


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


def read(fetch: Callable[[bytes], Entry | None], keys: Iterable[bytes]) -> dict[bytes, Entry | None]:
    """Read the entries of keys, each once."""
    distinct = dict.fromkeys(keys)
    return dict(zip(distinct, map(fetch, distinct)))


def write(put: Callable[[bytes, Entry], None], entries: Mapping[bytes, Entry]) -> None:
    """Write the entries of keys."""
    deque(map(put, entries, entries.values()), maxlen=0)


def _counted(before: Before, keys: Sequence[bytes], values: Sequence[Any], timestamps: list[int]) -> Folded:
    counters = {key: count(1 if entry is None else entry[0] + 1) for key, entry in before.items()}
    return Folded(list(map(next, map(counters.__getitem__, keys))), _newest(before, keys, timestamps))


class _Combining:
    """Folds that look at values. Stateless."""

    def __init__(self, fold: Fold, serde: Serde[Any]) -> None:
        recipe = RECIPES[fold]
        self._step, self._zero = recipe.step, recipe.zero
        self._serialize = serde.serialize
        self._known = frozenset(serde.accepts)

    def folded(
        self, before: Before, keys: Sequence[bytes], values: Sequence[Any], timestamps: list[int]
    ) -> Folded:
        results: list[Any] = []
        give, step, zero, known = results.append, self._step, self._zero, self._known
        so_far = {key: zero if entry is None else entry[0] for key, entry in before.items()}
        try:
            for key, value in zip(keys, values):
                old = so_far[key]
                new = value if old is None else step(old, value)
                if type(new) not in known:
                    self._check(new)
                so_far[key] = new
                give(new)
        except (
            Exception
        ):  # which one it was, the number of results tells; what it was, is found record by record
            pass
        return Folded(results, _newest(before, keys, timestamps))

    def _check(self, new: Any) -> None:
        if new is None:
            raise ValueError("a result that deletes the entry")
        self._serialize(new)


def _newest(before: Before, keys: Sequence[bytes], timestamps: list[int]) -> list[int]:
    """Give per record the largest timestamp of its key so far; where time goes forward these are the records' own."""
    stored = max((entry[1] for entry in before.values() if entry is not None), default=-1)
    if timestamps and stored <= timestamps[0] and sorted(timestamps) == timestamps:
        return timestamps
    latest = {key: -1 if entry is None else entry[1] for key, entry in before.items()}
    newest: list[int] = []
    for key, timestamp in zip(keys, timestamps):
        if latest[key] > timestamp:
            timestamp = latest[key]
        else:
            latest[key] = timestamp
        newest.append(timestamp)
    return newest
