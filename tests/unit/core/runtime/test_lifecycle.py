"""The life cycle: every state with every event, and the invariants of the table as a whole."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from millstream.core.runtime.lifecycle import (
    ENDING,
    FINAL,
    INITIAL,
    PROCESSING,
    TRANSITIONS,
    Event,
    State,
    state_after,
)

EXPECTED = {
    "starting": ["running", "starting", "starting", "draining", "stopping", "stopped", "failed"],
    "running": ["running", "waiting", "running", "draining", "stopping", "stopped", "failed"],
    "waiting": ["waiting", "waiting", "running", "draining", "stopping", "stopped", "failed"],
    "draining": ["draining", "draining", "draining", "draining", "stopping", "stopped", "failed"],
    "stopping": ["stopping", "stopping", "stopping", "stopping", "stopping", "stopped", "failed"],
    "stopped": ["stopped"] * 7,
    "failed": ["failed"] * 7,
}
"""By state, the state after each event, in the order of ``Event``; where an event is illegal, the same state."""


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_event_in_every_state_leads_to_the_expected_state(state: State, event: Event) -> None:
    assert state_after(state, event) == EXPECTED[state][list(Event).index(event)]


def test_an_event_that_the_table_does_not_have_changes_nothing() -> None:
    illegal = set(product(State, Event)) - TRANSITIONS.keys()
    assert len(illegal) == len(State) * len(Event) - len(TRANSITIONS) > 0
    assert all(state_after(state, event) is state for state, event in illegal)


def test_every_entry_changes_the_state() -> None:
    assert all(state is not after for (state, _), after in TRANSITIONS.items())


def test_every_state_is_reached_and_can_end() -> None:
    reached = {INITIAL, *TRANSITIONS.values()}
    assert reached == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State) - FINAL
    for state in set(State) - FINAL:
        assert {state_after(state, Event.QUERY_ENDED), state_after(state, Event.ERROR)} == FINAL


def test_an_application_that_ends_does_not_process_again() -> None:
    assert not ENDING & PROCESSING
    assert all(after in ENDING for (state, _), after in TRANSITIONS.items() if state in ENDING)


def test_the_table_cannot_be_changed() -> None:
    table: Any = TRANSITIONS
    with pytest.raises(TypeError):
        table[State.STOPPED, Event.ERROR] = State.FAILED
