"""Backpressure: how many records of an operator are sent to the async worker, and how many more the task takes in.

The async worker must not run out of calls between two micro-batches. The limit of records in flight is therefore twice the number of
records answered since the last step, or four times that number if nearly all records in flight were answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Final

from millstream.core.asynchronous.in_flight_window import InFlightWindow
from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord
from millstream.core.engine.asynchronous.ordering import Ordering
from millstream.core.engine.asynchronous.record_keys import key_text
from millstream.core.model.calls import Calls
from millstream.core.state.contract import Memory

MIN_IN_FLIGHT: Final = 10_000
"""Minimum limit of records in flight, so that the async worker does not run out of calls between two micro-batches."""
_TIMES_IN_FLIGHT: Final = 20
_TIMES_ANSWERED: Final = 2
_TIMES_ALL_ANSWERED: Final = 4
_NEARLY: Final = 9 / 10
_MAX_IN_FLIGHT: Final = 100_000
_FADES: Final = 3 / 4
"""How much of the limit remains at the next step, because a step that follows quickly has few results."""
_MAX_SPILLED: Final = 100_000
"""From this number of spilled records of hot keys, no more records are taken."""


class Backpressure:
    """The limits of one operator. Owned by the operator's in-flight records.

    Args:
        per_key: Initial limit of records in flight per key.

    Attributes:
        window: The records in flight, and the records that wait to be sent.
    """

    def __init__(self, calls: Calls, ordering: Ordering, per_key: int, memory: Memory) -> None:
        self._least = max(MIN_IN_FLIGHT, _TIMES_IN_FLIGHT * calls.max_in_flight)
        self._per_key = per_key
        self._ordering = ordering
        self._memory = memory
        self._ran_dry = True
        """True if the async worker had run out of calls, or nearly, at the last step."""
        limit_per_key = per_key if ordering.queues_by_key else None
        self.window = InFlightWindow(self._least, limit_per_key, blocking=ordering.by_key)

    def set_limit(self, answered: int) -> None:
        """Set the limit from the number of results since the last step."""
        window, memory = self.window, self._memory
        self._ran_dry = answered >= window.in_flight * _NEARLY
        times = _TIMES_ALL_ANSWERED if self._ran_dry else _TIMES_ANSWERED
        faded = round(memory.get("most", 0) * _FADES)
        window.limit = memory["most"] = max(self._least, min(max(times * answered, faded), _MAX_IN_FLIGHT))

    def set_limits_of_keys(self, answered: Iterable[Hashable]) -> None:
        """Raise the limits of keys with many results. ``answered`` contains the key identity of each answered record."""
        if self._ordering.queues_by_key and self._per_key > 1:
            enough = self._per_key // _TIMES_ANSWERED
            counts = Counter(answered).items()
            self.window.raise_limits(
                {key: _TIMES_ANSWERED * count for key, count in counts if count > enough}
            )

    def room(self, spilled: int) -> int:
        """Return how many more records can be taken in: about as many as can be sent in the next step."""
        window = self.window
        left = 0 if self._ran_dry else window.in_flight // 2
        room = window.limit - left - (window.parked - window.blocked)
        if self._ordering.by_partition:
            return max(room - spilled, 0)
        return max(room, 0) if spilled < _MAX_SPILLED else 0


_SAMPLE: Final = 256
"""How many records of a step are sampled."""


class HotKeys:
    """Finds the hottest key of an operator. Owned by the operator's in-flight records.

    Args:
        records: The records in memory, by number.
        first: The number that the next record will have.
    """

    def __init__(self, records: Mapping[int, InFlightRecord], first: int) -> None:
        self._records = records
        self._first = first
        self._spilled: dict[int, Hashable] = {}

    def note_spilled(self, record: InFlightRecord) -> None:
        """Remember the key of a new record that does not stay in memory."""
        self._spilled[record.number] = record.key_id

    def take_hottest(self, end: int) -> tuple[str, int, int] | None:
        """Return the most frequent key of the sample, its count and the sample size; None if no record has a key.

        Args:
            end: The number that the next record will have. The sample of the following step begins there.
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
