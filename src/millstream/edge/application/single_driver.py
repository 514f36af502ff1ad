"""Single driver: a driver under at least once that starts at once, unless another one runs the application.

It is a member of the group that elects among standbys, so each driver of an application sees the others, on any host. Under exactly once,
the marks in Kafka decide which driver may send (see ``checkpoint_ownership``), and a later one may take over deliberately.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.core.model.errors import ApplicationRunningError, BrokerUnavailableError, MillstreamError
from millstream.core.topology.internal import driver_topic
from millstream.drivers.kafka.election import SESSION_MS, Election
from millstream.drivers.kafka.process_names import process_of
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.checkpoint.state_lease import Lease

if TYPE_CHECKING:
    from millstream.edge.application.application_run import ApplicationRun

log = logging.getLogger("millstream.application")

_STEP_S: Final = 0.1
_LIVES_S: Final = SESSION_MS / 1000 + 4
"""After this time, in seconds, a member that the group still has is alive."""


class SingleDriver:
    """A driver that refuses to start while another one runs the application."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._id = clients.application_id
        self._election: Election | None = None

    def lease(self, take: Callable[[], Lease]) -> Lease:
        return take()

    def attach_to(self, run: ApplicationRun) -> None:
        """Join the group, and end the application when another driver is elected.

        Raises:
            ApplicationRunningError: If another driver runs the application.
        """
        self._join()
        if self._election is not None:
            self._election.when_replaced(lambda: run.end_with(self._replaced_error()))

    def leave(self) -> None:
        if self._election is not None:
            self._election.leave()

    def _join(self) -> None:
        try:
            self._election = self._clients.election()
        except BrokerUnavailableError:
            raise
        except MillstreamError as error:
            log.warning(
                "whether another driver runs application %r cannot be seen: %s. Make sure that there is only this one, or allow this user "
                "to create, describe and read topic %r, and to read group %r",
                self._id,
                error.message,
                driver_topic(self._id),
                driver_topic(self._id),
            )
            return
        self._election.start_unelected()
        if self._election.rivals and not self._is_elected(self._election):
            raise self._already_running_error(self._election.rivals[0])

    def _is_elected(self, election: Election) -> bool:
        """Wait until Kafka has elected a driver; return whether it is this one, because the others have died."""
        deadline = time.monotonic() + _LIVES_S
        try:
            while not election.wait(_STEP_S):
                if election.wait_replaced(0) or time.monotonic() > deadline:
                    return False
        except MillstreamError:  # this driver may not be elected, so the other one is
            return False
        return True

    def _already_running_error(self, rival: str) -> ApplicationRunningError:
        return ApplicationRunningError(
            f"application {self._id!r} is already running: {process_of(rival)} is its driver. Nothing was read or sent. Stop it first. To run "
            "a second application, use another application id; to have a second driver ready, start all drivers with standby=True"
        )

    def _replaced_error(self) -> ApplicationRunningError:
        return ApplicationRunningError(
            f"application {self._id!r} has another driver, which was started at the same time, or while this one did not respond: it was "
            "suspended, or could not reach the brokers. Nothing is lost. Run only one of them, or start all drivers with standby=True"
        )
