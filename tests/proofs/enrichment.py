"""The calls of the proofs of order: 0 to 5 ms for each record, and one record in twenty fails twice.

Everything is derived from the number of the record, so a serial run, the *oracle*, needs only the numbers in the order in which
they were written. For each key it computes the *chain*: the SHA-256 of all answers in order, which differs for any other answers
or order.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from .journal import Journal

FAILS = 2
"""How often the calls for a failing record fail."""

_TRIED: Counter[int] = Counter()
_BATCHES = count(1)

Keys = npt.NDArray[np.int64]
"""The key of each record, by its number."""


def spread_keys(records: int, keys: int) -> Keys:
    """Return one of ``keys`` keys for each record, uniformly distributed."""
    return np.random.default_rng(311).integers(0, keys, records)


def zipf_keys(records: int, keys: int, exponent: float) -> Keys:
    """Return one of ``keys`` keys for each record; the k-th key has a share proportional to ``k ** -exponent``."""
    weights = np.arange(1, keys + 1) ** -exponent
    return np.random.default_rng(408).choice(keys, records, p=weights / weights.sum())


def fails(number: int) -> bool:
    """Return whether the first calls for a record fail."""
    return _mixed(number) % 20 == 0


def lasts_ms(number: int) -> float:
    """Return how long a call for a record takes: 0 to 5 ms."""
    return (_mixed(number) >> 8) % 5_001 / 1_000


def answer(number: int) -> str:
    """Return the final answer of the calls for a record."""
    return f"{number}:{_mixed(number):08x}"


def _mixed(number: int) -> int:
    number = (number ^ number >> 16) * 0x45D9F3B & 0xFFFFFFFF
    return (number ^ number >> 15) * 0x2C1B3C6D & 0xFFFFFFFF


class Enrich:
    """The function that is called for one record.

    Args:
        journal: Where begins and ends are written.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, value: str) -> str:
        """Answer after a while, or fail."""
        number = int(value)
        attempt = _attempt(number)
        self._journal.begin(number, attempt=attempt)
        await asyncio.sleep(lasts_ms(number) / 1000)
        return _ended(self._journal, number, attempt, 0)


class EnrichBatch:
    """The function that is called for many records and takes as long as the longest of them. Each line has the number of the call.

    Args:
        journal: Where begins and ends are written.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, values: Sequence[str]) -> list[str | Exception]:
        """Answer after a while, with a failure for some."""
        numbers, batch = [int(value) for value in values], next(_BATCHES)
        attempts = [_attempt(number) for number in numbers]
        for number, attempt in zip(numbers, attempts):
            self._journal.begin(number, attempt=attempt, note=batch)
        await asyncio.sleep(max(map(lasts_ms, numbers)) / 1000)
        return [self._end(number, attempt, batch) for number, attempt in zip(numbers, attempts)]

    def _end(self, number: int, attempt: int, batch: int) -> str | Exception:
        try:
            return _ended(self._journal, number, attempt, batch)
        except ConnectionError as error:
            return error


def _attempt(number: int) -> int:
    """Count the attempts for a record that fails, in this process; the others have one."""
    if not fails(number):
        return 1
    _TRIED[number] += 1
    return _TRIED[number]


def _ended(journal: Journal, number: int, attempt: int, note: int) -> str:
    if fails(number) and attempt <= FAILS:
        journal.failed(number, attempt=attempt, note=note)
        raise ConnectionError(f"no answer for {number} yet")
    journal.end(number, attempt=attempt, note=note)
    return answer(number)


def chains(answers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the chain of each key.

    Args:
        answers: Keys and answers, in order.
    """
    found: dict[str, hashlib._Hash] = {}
    for key, value in answers:
        chain = found.get(key)
        if chain is None:
            chain = found[key] = hashlib.sha256()
        chain.update(f"{value}\n".encode())
    return {key: chain.hexdigest() for key, chain in found.items()}


def serial_run(keys: Keys) -> dict[str, str]:
    """Return the chain of each key of a serial run: the oracle."""
    return chains((f"k{key}", answer(number)) for number, key in enumerate(keys.tolist()))
