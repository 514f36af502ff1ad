"""Combining: makes one record of the records of a key that were read together, before they reach the task that counts or adds them.

All records of a key belong to one task, and to one key range. So a key with most of the records of a partition keeps a single core busy,
whatever the number of workers. For the aggregations that ``millstream.core.topology.analysis.combinable`` names, the readers, of which
there are several, combine its records: the task processes one record for each key and *piece*, which is what a fetch returned.

The record of a key has the offset and the headers of the key's last record, the largest timestamp, a value that stands for all values, and
the number of records as its *weight*. Combining never changes a result: a piece whose records could be dropped, fail, or round
differently is left as it is.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any, Final

from millstream.core.engine.columns import Column, checked, deserialised
from millstream.core.model.record import Records
from millstream.core.topology import nodes as n
from millstream.core.topology.folds import RECIPES, Fold

_SAMPLE: Final = 1024
"""The first records of a piece, whose keys show whether combining is worthwhile."""
_FEWEST: Final = 64
"""A piece with fewer records is left as it is."""
_PER_KEY: Final = 4
"""Combining is worthwhile if a key of the sample has at least this many records on average."""

_ADDED: Final = frozenset({int})
"""Floats are not combined: the sum of many depends on the order of the additions."""
_COMPARED: Final = frozenset({int, float, str, bytes})
_TYPES: Final = {Fold.SUM: _ADDED, Fold.MEAN: _ADDED, Fold.MIN: _COMPARED, Fold.MAX: _COMPARED}
"""The types of values that are combined. The values of a piece must have a single one."""


class Combiner:
    """Combines the records of a source for an aggregation downstream of it. Stateless."""

    def __init__(self, source: n.Source, fold: Fold) -> None:
        self._key, self._value = source.key, source.value
        self._combine, self._types = RECIPES[fold].combine, _TYPES.get(fold, frozenset())

    def combined(self, records: Records) -> Records:
        """Combine the records of a piece.

        Args:
            records: Records of one partition, or records for one topic, in offset order. Not modified.

        Returns:
            One record per key, with weights, in the order of the last records of the keys. The given records if they cannot be
            combined, or if it is not worthwhile.

        Example:
            >>> from millstream.core.model import serdes
            >>> source = n.Source("clicks", (), ("clicks",), serdes.string, serdes.string)
            >>> clicks = Records([b"home", b"help"] * 100, [b""] * 200, [*range(200)], [*range(200)])
            >>> found = Combiner(source, Fold.COUNT).combined(clicks)
            >>> found.keys, found.offsets, found.weights
            ([b'home', b'help'], [198, 199], [100, 100])
        """
        if _is_worthwhile(records) and records.partitions is None and records.weights is None:
            with suppress(Exception):  # then the task gets every record, and applies its error policy
                return self._combined(records)
        return records

    def _combined(self, records: Records) -> Records:
        keys, values, timestamps = records.keys, records.values, records.timestamps
        if Column(data=keys).any_null() or Column(data=values).any_null() or min(timestamps) < 0:
            raise ValueError("the task may drop some of the records")
        last = dict(zip(keys, range(len(keys))))
        checked(self._key, list(last))
        values_of_keys = self._values(keys, values)
        newest, counts = _newest(keys, timestamps), Counter(keys)
        found = records.take(sorted(last.values()))
        found.timestamps = [newest[key] for key in found.keys]
        found.weights = [counts[key] for key in found.keys]
        if values_of_keys:
            found.values = [values_of_keys[key] for key in found.keys]
        return found

    def _values(self, keys: list[bytes | None], data: list[bytes | None]) -> dict[bytes | None, bytes]:
        """Return the serialised value of all records of each key; nothing if values make no difference."""
        combine, serde = self._combine, self._value
        if combine is None:
            checked(serde, data)
            return {}
        values = deserialised(serde, data)
        kinds = set(map(type, values))
        if len(kinds) != 1 or not kinds <= self._types:
            raise ValueError("values of these types are not combined")
        so_far: dict[bytes | None, Any] = {}
        for key, value in zip(keys, values):
            so_far[key] = combine(so_far[key], value) if key in so_far else value
        serialised = {key: serde.serialize(value) for key, value in so_far.items()}
        # A total may not fit, and a NaN, which minimum and maximum do not order, differs from itself.
        if any(serde.deserialize(serialised[key]) != value for key, value in so_far.items()):
            raise ValueError("a total does not fit the serde")
        return serialised


def _is_worthwhile(records: Records) -> bool:
    sample = records.keys[:_SAMPLE]
    return len(sample) >= _FEWEST and len(set(sample)) * _PER_KEY <= len(sample)


def _newest(keys: list[bytes | None], timestamps: list[int]) -> dict[bytes | None, int]:
    """Return the largest timestamp of each key, ms since the epoch."""
    if sorted(timestamps) == timestamps:
        return dict(zip(keys, timestamps))
    newest = dict.fromkeys(keys, -1)
    for key, timestamp in zip(keys, timestamps):
        if timestamp > newest[key]:
            newest[key] = timestamp
    return newest
