"""Life cycle: the states of a running application, as a transition table.

``status().state`` shows the state. An event without an entry for the current state changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """What an application is doing. The values are public: ``status().state`` and the metrics show them."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """No broker responds."""
    DRAINING = "draining"
    """External topics are no longer read; unfinished records are completed."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Event(StrEnum):
    """An event that changes the state of an application."""

    FIRST_BATCH_COMMITTED = "first batch committed"
    BROKER_LOST = "broker lost"
    BROKER_BACK = "broker back"
    DRAIN_REQUESTED = "drain requested"
    STOP_REQUESTED = "stop requested"
    QUERY_ENDED = "query ended"
    ERROR = "error"


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (State.STARTING, Event.FIRST_BATCH_COMMITTED): State.RUNNING,
        (State.STARTING, Event.DRAIN_REQUESTED): State.DRAINING,
        (State.STARTING, Event.STOP_REQUESTED): State.STOPPING,
        (State.STARTING, Event.QUERY_ENDED): State.STOPPED,
        (State.STARTING, Event.ERROR): State.FAILED,
        (State.RUNNING, Event.BROKER_LOST): State.WAITING,
        (State.RUNNING, Event.DRAIN_REQUESTED): State.DRAINING,
        (State.RUNNING, Event.STOP_REQUESTED): State.STOPPING,
        (State.RUNNING, Event.QUERY_ENDED): State.STOPPED,
        (State.RUNNING, Event.ERROR): State.FAILED,
        (State.WAITING, Event.BROKER_BACK): State.RUNNING,
        (State.WAITING, Event.DRAIN_REQUESTED): State.DRAINING,
        (State.WAITING, Event.STOP_REQUESTED): State.STOPPING,
        (State.WAITING, Event.QUERY_ENDED): State.STOPPED,
        (State.WAITING, Event.ERROR): State.FAILED,
        (State.DRAINING, Event.STOP_REQUESTED): State.STOPPING,
        (State.DRAINING, Event.QUERY_ENDED): State.STOPPED,
        (State.DRAINING, Event.ERROR): State.FAILED,
        (State.STOPPING, Event.QUERY_ENDED): State.STOPPED,
        (State.STOPPING, Event.ERROR): State.FAILED,
    }
)

INITIAL: Final = State.STARTING
FINAL: Final = frozenset({State.STOPPED, State.FAILED})
ENDING: Final = FINAL | {State.STOPPING}
PROCESSING: Final = frozenset({State.RUNNING, State.WAITING, State.DRAINING})
"""The states in which the query has committed a micro-batch and continues, so that it can be replaced."""


def state_after(state: State, event: Event) -> State:
    return TRANSITIONS.get((state, event), state)
