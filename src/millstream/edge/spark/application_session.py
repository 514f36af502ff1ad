"""The Spark session of a running application."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from millstream.drivers.spark.driver.launch import end_jvm_with_program, starts_jvm
from millstream.drivers.spark.driver.spark_session import session_for
from millstream.drivers.spark.driver.wanted import lacking_lines, tell_lacking
from millstream.edge.settings.settings import Settings
from millstream.edge.status.progress_log import ProgressLog


class ApplicationSession:
    """The session of an application, created on first use.

    Args:
        log: File for Spark's output; None for this program's output.

    Attributes:
        lacking: Settings that a session of the user's program lacks; one line per setting.
    """

    def __init__(self, application_id: str, progress: ProgressLog, log: Path | None) -> None:
        self._id = application_id
        self._progress = progress
        self.made: SparkSession | None = None
        self._log = log
        self.lacking: Sequence[str] = ()

    def session(self, settings: Settings) -> SparkSession:
        if self.made is None:
            self.made = self._make(settings)
        return self.made

    def _make(self, settings: Settings) -> SparkSession:
        own = SparkSession.getActiveSession() is None and SparkContext._active_spark_context is None
        if own:
            where = f"; its output goes to {self._log}" if self._log and starts_jvm() else ""
            master = "" if settings.master is None else f" ({settings.master})"
            self._progress.event("spark-starts", f"starting Spark{master}{where}")
        session = session_for(self._id, settings.master, settings.spark, self._log)
        end_jvm_with_program()
        whose = "runs" if own else "is the program's own session"
        address = session.sparkContext.uiWebUrl
        ui = "" if address is None else f", UI at {address}"
        self._progress.event(
            "spark-runs", f"Spark {session.version} {whose} on {session.sparkContext.master}{ui}", ui=address
        )
        if not own:
            self.lacking = lacking_lines(session, settings.spark)
            tell_lacking(self.lacking)
        return session
