"""Hot keys: which key most of the records have that came in a step, by a sample of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Final

from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord
from millstream.core.engine.asynchronous.record_keys import key_text

_SAMPLE: Final = 256
"""How many records of a step are sampled."""


class HotKeys:
    """Finds the hottest key of an operator. Owned by its in-flight records.

    Args:
        records: The records in memory, by number.
        first: The number of the next record.
    """

    def __init__(self, records: Mapping[int, InFlightRecord], first: int) -> None:
        self._records = records
        self._first = first
        self._spilled: dict[int, Hashable] = {}

    def note_spilled(self, record: InFlightRecord) -> None:
        """Note the key of a new record that does not stay in memory."""
        self._spilled[record.number] = record.key_id

    def take_hottest(self, end: int) -> tuple[str, int, int] | None:
        """Return the key that most records of the sample have, how many, and of how many; None if none has a key.

        Args:
            end: The number of the next record; the following step is sampled from there.
        """
        first, spilled = self._first, self._spilled
        self._first, self._spilled = end, {}
        sample = range(first, end, (end - first) // _SAMPLE + 1)
        keys = Counter(
            spilled[number] if number in spilled else self._records[number].key_id
            for number in sample
            if number in spilled or number in self._records
        )
        known = [(key, count) for key, count in keys.most_common(2) if key is not None]
        return (key_text(known[0][0]), known[0][1], keys.total()) if known else None
