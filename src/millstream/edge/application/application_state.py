"""The state of a running application; events change it according to the transition table."""

from __future__ import annotations

import threading

from millstream.core.runtime.lifecycle import INITIAL, Event, State, state_after


class ApplicationState:
    """The state of an application. Several threads change it, under a lock."""

    def __init__(self) -> None:
        self.now: State = INITIAL
        self._lock = threading.Lock()

    def on(self, event: Event) -> bool:
        """Apply an event; return whether it changed the state."""
        with self._lock:
            before, self.now = self.now, state_after(self.now, event)
            return self.now is not before
