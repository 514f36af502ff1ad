"""A Spark session for commands that may need one to read a remote checkpoint or to work on its state."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.core.model.errors import SparkRuntimeError
from millstream.drivers.spark.driver.spark_session import session_for
from millstream.edge.settings.settings import Settings


class Sessions:
    """A Spark session that is created on first use. It is stopped at the end, unless it existed before.

    Raises:
        SparkRuntimeError: At the end, instead of an error of Spark, which only works on the checkpoint here.
    """

    def __init__(self, application_id: str, settings: Settings) -> None:
        self._name = application_id
        self._settings = settings
        self._own: SparkSession | None = None

    def get(self) -> SparkSession:
        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        settings = self._settings
        log = None if settings.output == "debug" else settings.home(self._name) / "millstream.log"
        self._own = session_for(self._name, settings.master, settings.spark, log)
        return self._own

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reason = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
        if self._own is not None:
            self._own.stop()
        if isinstance(error, (Py4JJavaError, PySparkException)):
            location = self._settings.checkpoint(self._name)
            raise SparkRuntimeError(
                f"Spark cannot work on the checkpoint {location}: {reason.strip().partition(chr(10))[0]}. Correct --checkpoint-location, or the "
                "settings with which Spark reaches it (spark={...})"
            ) from error
