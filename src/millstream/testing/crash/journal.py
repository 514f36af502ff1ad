"""The journal checker: compares the values read from the output topic with those that the oracle expects.

The *journal* of a key is the sequence of its values in the output topic, read with ``read_committed``. It is compared step by step with
the expected sequence, and every step other than the expected next one counts as one of

=============  ==================================================================================
lost           an expected value that is missing
duplicated     a value that occurs again
reordered      a value that first occurs after one that should follow it
wrong          a value, or a key, that is not expected
stale          a key whose last value is not the last expected one: its reader keeps an old result
=============  ==================================================================================

Exactly once allows none of these. At least once allows ``duplicated``: a repeated micro-batch sends its records again, in order, perhaps
interleaved with the first attempt. But no value may be missing, and the last value must be right.

A cache merges the updates of a key within a micro-batch, so a *merged* journal may omit any value except the last. A *cut* journal is from
an unfinished run: it may end anywhere, but up to its end no value may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from millstream.core.model.serdes import Serde
from millstream.testing.crash.app import Entry, Expected, Guarantee
from millstream.testing.kafka import ConsumedRecord

_EXAMPLES = 10


@dataclass(frozen=True)
class Findings:
    """The findings as numbers of values (``stale``: of keys), with descriptions of the first few."""

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    wrong: int = 0
    stale: int = 0
    examples: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.reordered + other.reordered,
            self.wrong + other.wrong,
            self.stale + other.stale,
            (self.examples + other.examples)[:_EXAMPLES],
        )

    def broken(self, guarantee: Guarantee) -> int:
        """Return the number of findings that a guarantee does not allow."""
        never = self.lost + self.reordered + self.wrong + self.stale
        return never + self.duplicated if guarantee == "exactly_once" else never

    def breaks(self, guarantee: Guarantee) -> bool:
        return self.broken(guarantee) > 0


def journals_of(
    records: Iterable[ConsumedRecord], key: Serde[Any], value: Serde[Any]
) -> dict[Any, list[Any]]:
    """Return the values of each key in the order of the records. Null is None."""
    values: dict[Any, list[Any]] = {}
    for record in records:
        name = None if record.key is None else key.deserialize(record.key)
        values.setdefault(name, []).append(None if record.value is None else value.deserialize(record.value))
    return values


def check_journals(
    expected: Mapping[Any, Sequence[Any]],
    seen: Mapping[Any, Sequence[Any]],
    *,
    merged: bool = False,
    cut: bool = False,
) -> Findings:
    """Compare the journals of all keys with the expected ones.

    Args:
        merged: Whether values other than the last may be missing.
        cut: Whether journals may end anywhere.

    Example:
        >>> check_journals({"a": [1, 2, 3]}, {"a": [1, 2, 2, 3]})
        Findings(lost=0, duplicated=1, reordered=0, wrong=0, stale=0, examples=("'a': duplicated 2",))
    """
    total = Findings()
    for key, values in expected.items():
        total += _findings_of_key(key, values, seen.get(key, ()), merged=merged, cut=cut)
    for key in seen.keys() - expected.keys():
        total += Findings(wrong=len(seen[key]), examples=(f"{key!r}: unexpected key",))
    return total


def _findings_of_key(
    key: Any, expected: Sequence[Any], seen: Sequence[Any], *, merged: bool, cut: bool
) -> Findings:
    times = [0] * len(expected)
    current = furthest = -1
    reordered: list[Any] = []
    wrong: list[Any] = []
    for value in seen:
        index = _index_of(expected, value, current)
        if index is None:
            wrong.append(value)
            continue
        if not times[index] and index < furthest:
            reordered.append(value)
        times[index] += 1
        current, furthest = index, max(index, furthest)
    needed = furthest + 1 if cut else len(expected)
    lost = [value for value, count in zip(expected[:needed], times) if not count]
    if merged:
        lost = [] if cut or not expected or times[-1] else [expected[-1]]
    again = [value for value, count in zip(expected, times) for _ in range(count - 1)]
    stale = not cut and bool(seen) and bool(expected) and seen[-1] != expected[-1]
    kinds = {"lost": lost, "duplicated": again, "reordered": reordered, "wrong": wrong}
    examples = [f"{key!r}: {kind} {values[0]!r}" for kind, values in kinds.items() if values]
    if stale:
        examples.append(f"{key!r}: ends with {seen[-1]!r} instead of {expected[-1]!r}")
    return Findings(len(lost), len(again), len(reordered), len(wrong), int(stale), tuple(examples))


def _index_of(expected: Sequence[Any], value: Any, current: int) -> int | None:
    """Return the position of a value in the expected sequence: the next, else the nearest before, else the nearest after."""
    if current + 1 < len(expected) and expected[current + 1] == value:
        return current + 1
    indices = chain(range(current, -1, -1), range(current + 2, len(expected)))
    return next((index for index in indices if expected[index] == value), None)


def check_contents(expected: Expected, contents: Mapping[Entry, Any]) -> tuple[int, tuple[str, ...]]:
    """Compare the contents of stores with the expected ones.

    Returns:
        The number of missing, wrong or surplus entries, and descriptions of the first few.

    Example:
        >>> check_contents(Expected({}, {"counts": {"a": 2}}), {("counts", "a"): 3})
        (1, ("store counts, key 'a': 3 instead of 2",))
    """
    wanted: dict[Entry, Any] = {
        (store, key): value for store, entries in expected.stores.items() for key, value in entries.items()
    }
    nothing = "nothing"
    wrong = [
        f"store {entry[0]}, key {entry[1]!r}: {contents.get(entry, nothing)!r} instead of {wanted.get(entry, nothing)!r}"
        for entry in [*wanted, *(contents.keys() - wanted.keys())]
        if contents.get(entry, nothing) != wanted.get(entry, nothing)
    ]
    return len(wrong), tuple(wrong[:_EXAMPLES])
