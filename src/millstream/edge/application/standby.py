"""Standby: a driver that waits, with Spark running, until Kafka elects it to run the application.

The running driver and the standbys are started in the same way, with ``standby=True``. They share the checkpoint, and may share the
state directory. A takeover lasts as long as the session timeout of the dead driver and the start of a query; Spark need not start. A
standby on a local master runs warm-ups, so that this query is not the first one of its session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.core.metrics.metric import Numbers
from millstream.core.model.errors import ApplicationRunningError
from millstream.core.runtime.lifecycle import State
from millstream.drivers.spark.driver.launch import is_local
from millstream.edge.application.warm_up import start_warm_up
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.settings.settings import Settings
from millstream.edge.spark.application_session import ApplicationSession
from millstream.edge.status.application_status import STANDBY, Status
from millstream.edge.status.log_output import attach
from millstream.edge.status.progress_log import ProgressLog
from millstream.edge.status.standby_log import standby_log
from millstream.edge.status.task_reports import TaskReports
from millstream.edge.web.listeners import Listeners

if TYPE_CHECKING:
    from millstream.edge.application.application_run import ApplicationRun

log = logging.getLogger("millstream.application")

_LEASE_S: Final = 0.2
_WARM_UPS: Final = 2
"""The second warm-up loads state from a checkpoint, as a takeover does."""
_WARM_UP_S: Final = 0.1


class Standby:
    """A driver that takes part in the election of its application; created by :meth:`elected`.

    Attributes:
        listeners: The HTTP listeners of this driver, which the application takes over. While the driver waits, only the port for metrics
            and health is open.
    """

    def __init__(self, application_id: str, settings: Settings) -> None:
        self.id = application_id
        self.listeners = Listeners()
        self._settings = settings
        self._progress = ProgressLog(application_id)
        self._reports = TaskReports()
        self._waited = self._waits = False
        log = attach(settings.output, standby_log(settings.home(application_id)))
        self._session = ApplicationSession(application_id, self._progress, log)
        try:
            self.listeners.stand_by(self, settings, self._progress.event)
            self._election = Clients(settings, application_id).election()
        except BaseException:
            self.listeners.close()
            raise
        try:
            self._session.session(settings)
        except BaseException:
            self.leave()
            raise

    @classmethod
    def elected(cls, application_id: str, settings: Settings) -> Standby:
        """Start Spark and return when this driver is elected.

        Raises:
            SettingsError: If the port for metrics cannot be opened, or the state directory cannot be written.
        """
        standby = cls(application_id, settings)
        try:
            if not standby._election.wait(1):
                standby._wait()
            standby._progress.event("elected", "this driver is elected to run the application")
        except BaseException:
            standby.leave()
            raise
        return standby

    def status(self) -> Status:
        return self._reports.status(STANDBY if self._waits else State.STARTING, None)

    def metrics(self) -> dict[str, int]:
        return self._reports.metrics()

    def measured(self) -> Numbers:
        return self._reports.measured()

    def lease(self, take: Callable[[], Lease]) -> Lease:
        """Take the lease; wait while the previous driver, for example a suspended one, still holds it on this host.

        Raises:
            ApplicationRunningError: If another driver is elected in the meantime.
        """
        waits = False
        while True:
            try:
                return take()
            except ApplicationRunningError as error:
                if not waits:
                    log.warning("waiting for the former driver to end or to be killed: %s", error)
                waits = True
                if self._election.wait_replaced(_LEASE_S):
                    raise

    def attach_to(self, run: ApplicationRun) -> None:
        """Pass the session to a starting application, and end the application when another driver is elected."""
        run.session, run.takes_over = self._session, self._waited
        self._election.when_replaced(lambda: run.end_with(self._replaced_error()))

    def leave(self) -> None:
        self._election.leave()
        self.listeners.close()

    def _wait(self) -> None:
        self._waited = self._waits = self.listeners.takes_over = True
        self._progress.event("standing-by", "standing by: another driver runs the application")
        self._warm_up()
        self._election.wait()
        self._waits = False

    def _warm_up(self) -> None:
        """Run the warm-ups; return early if this driver is elected. Checkpoints of other masters than local ones are on shared storage."""
        session = self._session.session(self._settings)
        if not is_local(str(session.sparkContext.master)):
            return
        for _ in range(_WARM_UPS):
            query = start_warm_up(session, Clients(self._settings, self.id))
            while query.isActive:
                if self._election.wait(_WARM_UP_S):
                    return
            if (error := query.exception()) is not None:
                log.warning("a takeover will take longer, because the warm-up has failed: %s", error)
                return
        self._progress.event("warmed-up", "ready to take over")

    def _replaced_error(self) -> ApplicationRunningError:
        return ApplicationRunningError(
            f"another driver of application {self.id!r} has been elected, because this one did not respond for longer than its session "
            "timeout: it was suspended, or could not reach the brokers. Nothing is lost. Start it again to make it a standby"
        )
