"""The partitions whose records a producer holds back during a change, and the end of changes that take too long."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Final

from millstream.core.model.errors import FanOutError
from millstream.drivers.kafka.clients import ClientSettings, log
from millstream.drivers.kafka.fanout.control_log import ControlLog
from millstream.drivers.kafka.fanout.coordinator import cancel

_CANCEL_S: Final = 0.25
"""Time that a partition is held back before the first producer cancels the change, in seconds."""
_TURN_S: Final = 0.25
"""Additional delay of each other producer before it cancels the change, in seconds."""
_TURNS: Final = 3
"""Maximum number of additional delays of a producer."""


class Restrictions:
    """The restrictions of one producer.

    Attributes:
        longest_s: The longest time for which a partition was held back, in seconds.
    """

    def __init__(self, settings: ClientSettings, control: ControlLog) -> None:
        self.longest_s = 0.0
        self._settings = settings
        self._control = control
        self._held: dict[int, tuple[float, float]] = {}
        """By partition, when it was first held back, and when the change is cancelled."""

    def follow(self, session: str) -> None:
        """Record when partitions were first held back. Cancel a change that takes too long."""
        now, held = monotonic(), self._control.ledger.held_partitions()
        for number in [number for number in self._held if number not in held]:
            since, _ = self._held.pop(number)
            self.longest_s = max(self.longest_s, now - since)
        for number in held:
            since, given_up = self._held.setdefault(number, (now, now + self._delay_s(session)))
            if now > given_up:
                self._cancel(number)
                self._held[number] = (since, monotonic() + self._delay_s(session))

    def _delay_s(self, session: str) -> float:
        """Return how long to wait before cancelling a change. Producers wait for different times, because they would fence each other."""
        turn = sum(name < session for name in self._control.ledger.members)
        return _CANCEL_S + _TURN_S * min(turn, _TURNS)

    def _cancel(self, partition: int) -> None:
        state = self._control.ledger.state(partition)
        log.warning(
            "change %d of %s is cancelled: no coordinator has finished it",
            state.change,
            state.history.primary,
        )
        # If another producer has taken over in the meantime, the control topic will contain the outcome.
        with suppress(FanOutError):
            cancel(self._settings, self._control, partition, state.change)
