"""The sessions of a producer, one after the other, and their records in the control topic. ``ledger`` defines the protocol."""

from __future__ import annotations

from collections.abc import Callable

from millstream.core.fanout.epochs import fan_out_topic
from millstream.core.fanout.ledger import HOLDING, member_entry, member_key
from millstream.drivers.kafka.fanout.control_log import ControlLog
from millstream.drivers.kafka.fanout.producer_sessions import ProducerSession


class Membership:
    """The current session of a producer. Owned by the thread that sends.

    Args:
        open_session: Opens a session with a transactional id.
        prefix: What the transactional ids of the producer begin with.
    """

    def __init__(
        self, open_session: Callable[[str], ProducerSession], prefix: str, control: ControlLog
    ) -> None:
        self._open_session = open_session
        self._prefix = prefix
        self._control = control
        self._sessions = 0
        self.session = self._begin()

    @property
    def ended(self) -> bool:
        """Whether a coordinator has fenced the session."""
        return self.session.name not in self._control.ledger.members

    def answer(self) -> None:
        """Answer the phases of changes. No transaction is open here, so all sent records are committed."""
        ledger, name = self._control.ledger, self.session.name
        if not (owed := dict(ledger.owed(name))):
            return
        for number, phase in owed.items():
            if phase.name != HOLDING:
                state = ledger.state(number)
                if state.ranges > 1:
                    self.session.refresh(fan_out_topic(state.history.primary))
        answers = {**ledger.members.get(name, {}), **owed}
        self._control.publish(*member_entry(name, answers))
        ledger.members[name] = answers

    def renew(self) -> bool:
        """Replace the session with a new one. Return whether the last transaction of the old session was committed."""
        lost, committed = self.session, self.session.end()
        self._control.publish(member_key(lost.name), None)
        self.session = self._begin()
        lost.close()
        return committed

    def leave(self, *, failed: bool) -> None:
        """Delete the session. If it has failed, fence it first, because its last transaction may still be under way."""
        if failed:
            self.session.end()
        self._control.publish(member_key(self.session.name), None)

    def _begin(self) -> ProducerSession:
        """Begin a session and read the control topic up to the session's first record."""
        self._sessions += 1
        session = self._open_session(f"{self._prefix}-{self._sessions}")
        try:
            self._control.publish(*member_entry(session.name, {}))
            self._control.expect(
                lambda: session.name in self._control.ledger.members, "the new session of a producer"
            )
        except BaseException:
            session.close()
            raise
        return session
