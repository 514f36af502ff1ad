"""Flow control: how many records of an operator are sent to the async worker, and how many more are taken in.

The async worker must not run out of calls between two micro-batches. So the limit follows the number of results: twice as many records
as were answered since the last step, and four times as many if nearly all were, because then it did run out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, Final

from millstream.core.asynchronous.in_flight_window import InFlightWindow
from millstream.core.engine.asynchronous.ordering import Ordering
from millstream.core.model.calls import Calls

MIN_IN_FLIGHT: Final = 10_000
"""The least limit of records in flight: the async worker must not run dry between two micro-batches."""
_TIMES_IN_FLIGHT: Final = 20
_TIMES_ANSWERED: Final = 2
_TIMES_ALL_ANSWERED: Final = 4
_NEARLY: Final = 9 / 10
_MAX_IN_FLIGHT: Final = 100_000
_FADES: Final = 3 / 4
"""What is left of the limit at the next step: some steps follow so soon that few results have come."""
_MAX_SPILLED: Final = 100_000
"""How many spilled records of hot keys are accepted before no more records are taken."""


class Backpressure:
    """The limits of one operator. Owned by its in-flight records.

    Args:
        per_key: The initial limit of records of a key in flight.

    Attributes:
        window: The records in flight, and those that wait to be sent.
    """

    def __init__(self, calls: Calls, ordering: Ordering, per_key: int, memory: dict[str, Any]) -> None:
        self._least = max(MIN_IN_FLIGHT, _TIMES_IN_FLIGHT * calls.max_in_flight)
        self._per_key = per_key
        self._ordering = ordering
        self._memory = memory
        self._ran_dry = True
        """Whether the async worker had no call left at the last step."""
        limit_per_key = per_key if ordering.queues_by_key else None
        self.window = InFlightWindow(self._least, limit_per_key, blocking=ordering.by_key)

    def set_limit(self, answered: int) -> None:
        """Set the limit by the number of results since the last step."""
        window, memory = self.window, self._memory
        self._ran_dry = answered >= window.in_flight * _NEARLY
        times = _TIMES_ALL_ANSWERED if self._ran_dry else _TIMES_ANSWERED
        faded = round(memory.get("most", 0) * _FADES)
        window.limit = memory["most"] = max(self._least, min(max(times * answered, faded), _MAX_IN_FLIGHT))

    def set_limits_of_keys(self, answered: Iterable[Hashable]) -> None:
        """Raise the limits of the keys with many results; ``answered`` has the queue key of each result."""
        if self._ordering.queues_by_key and self._per_key > 1:
            enough = self._per_key // _TIMES_ANSWERED
            counts = Counter(answered).items()
            self.window.raise_limits(
                {key: _TIMES_ANSWERED * count for key, count in counts if count > enough}
            )

    def room(self, spilled: int) -> int:
        """Return how many more records can be taken: about as many as can be sent in the next step."""
        window = self.window
        left = 0 if self._ran_dry else window.in_flight // 2
        room = window.limit - left - (window.parked - window.blocked)
        if self._ordering.spills_by == "partition":
            return max(room - spilled, 0)
        return max(room, 0) if spilled < _MAX_SPILLED else 0
