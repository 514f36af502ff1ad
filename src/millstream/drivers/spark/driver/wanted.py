"""The Spark settings that a query wants: the purpose of each, and the loss without it.

Spark reads some settings when a query starts, so each query sets them in any session. It reads the others when the session is created.
If an existing session lacks such settings, the user is warned.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from millstream.core.model.errors import SparkRuntimeError
from millstream.drivers.spark.driver.launch import is_local
from millstream.drivers.spark.driver.modules import is_classic

logger = logging.getLogger("millstream.application")

STATE_STORE: Final = "spark.sql.streaming.stateStore."
PROVIDER: Final = f"{STATE_STORE}providerClass"
FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_WITHOUT_COLUMNS: Final = ".HDFSBackedStateStoreProvider"


@dataclass(frozen=True)
class WantedSetting:
    """A Spark setting that a query needs.

    Attributes:
        default: Spark's default, for a setting that is read when a session is created. None if each query can set it.
        guards: Whether the setting protects a local session from others. A cluster is protected as a whole.
    """

    name: str
    value: str
    without: str
    default: str | None = None
    guards: bool = False


WANTED: Final = (
    WantedSetting(
        "spark.sql.adaptive.enabled",
        "false",
        "Spark plans the shuffle before the tasks anew in each micro-batch",
    ),
    WantedSetting(
        PROVIDER,
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "Spark cannot keep the state of a topology",
    ),
    WantedSetting(
        f"{STATE_STORE}rocksdb.changelogCheckpointing.enabled",
        "true",
        "each micro-batch writes a full snapshot of the state of each partition (377 instead of 238 ms for two small "
        "ones)",
    ),
    WantedSetting(
        f"{STATE_STORE}rocksdb.trackTotalNumberOfRows",
        "false",
        "each change of the state needs a lookup first, to count rows",
    ),
    WantedSetting(
        "spark.sql.streaming.noDataMicroBatches.enabled",
        "false",
        "an empty micro-batch follows each micro-batch with records",
    ),
    WantedSetting(
        "spark.sql.streaming.numRecentProgressUpdates",
        "200",
        "Spark discards the durations of micro-batches sooner",
    ),
    WantedSetting(
        "spark.python.daemon.module",
        "millstream.edge.daemon",
        "each new Python worker imports everything itself, 0.7 s of a core",
        default="pyspark.daemon",
    ),
    WantedSetting(
        "spark.python.worker.reuse",
        "true",
        "each Spark task starts its own Python worker, which must connect to Kafka and open the local copies",
        default="true",
    ),
    WantedSetting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        # For example a client that looks for the port's previous listener, such as a broker.
        "the first connection to a task's TCP port is assumed to be its Python worker's; if it is another program, the micro-batch "
        "fails or hangs",
        default="false",
    ),
    WantedSetting(
        "spark.shuffle.compress",
        "false",
        "Spark compresses a few large byte strings, which it reads back at once (8.1 instead of 7.7 core-seconds for a million records)",
        default="true",
    ),
    WantedSetting(
        "spark.authenticate",
        "true",
        "anyone who can connect to a port of this session can read what it sends to tasks, including secrets of Kafka's "
        "clients",
        default="false",
        guards=True,
    ),
)
"""All settings that queries need. docs/how-to/run-on-your-own-spark-session.md contains the same table."""

QUERY_CONF: Final[Mapping[str, str]] = {want.name: want.value for want in WANTED if want.default is None}
"""Settings that a query needs in any session."""

AS_READ_CONF: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
}
"""Further settings for queries whose readers call no user functions.

A repeated read of a range returns the same rows, so Spark need not compare them.
"""

SESSION_CONF: Final[Mapping[str, str]] = {
    want.name: want.value for want in WANTED if want.default is not None and not want.guards
}
"""Settings of a session that is created here, in addition to those that protect it."""


def lacking(conf: Mapping[str, str], chosen: Collection[str] = ()) -> list[str]:
    """Return the settings that a session lacks and that can no longer be changed, one line each."""
    local = is_local(conf.get("spark.master", ""))
    return [
        f"{want.name}={want.value}: without it {want.without}"
        for want in WANTED
        if want.default is not None
        and conf.get(want.name, want.default) != want.value
        and want.name not in chosen
        and (local or not want.guards)
    ]


def lacking_lines(session: SparkSession, given: Mapping[str, str]) -> list[str]:
    """Return the settings that an existing session lacks, one line per setting.

    Args:
        given: The application's Spark settings. Some have no effect in an existing session.
    """
    made = _made_with(session)
    late = sorted(
        name for name, value in given.items() if not is_settable(session, name) and made.get(name) != value
    )
    return [
        *lacking(made, given),
        *(f"{name}={given[name]}: the application sets it too late for this session" for name in late),
    ]


def tell_lacking(lines: Collection[str]) -> None:
    if lines:
        logger.warning(
            "this Spark session lacks settings that can only be set when a session is created, with SparkSession.builder.config or in "
            "spark-defaults.conf:%s",
            "".join(f"\n  {line}" for line in lines),
        )


def keep_state_in(session: SparkSession) -> None:
    """Set the settings that the user's own queries in a session need to run a topology, unless they are already set.

    Raises:
        SparkRuntimeError: If the session's state store cannot hold the state of a topology.
    """
    provider = session.conf.get(PROVIDER, None) or ""
    if provider.endswith(_WITHOUT_COLUMNS):
        raise SparkRuntimeError(
            f"this session sets {PROVIDER} to {provider}, which cannot keep the state of a topology. Before ms.spark.transform and "
            f"until the query is started, call spark.conf.set({PROVIDER!r}, {QUERY_CONF[PROVIDER]!r}), or spark.conf.unset({PROVIDER!r})"
        )
    for name, value in QUERY_CONF.items():
        if name.startswith(STATE_STORE) and session.conf.get(name, None) is None:
            session.conf.set(name, value)


def _made_with(session: SparkSession) -> Mapping[str, str]:
    if is_classic(session):
        return dict(session.sparkContext.getConf().getAll())
    return session.conf.getAll  # the only settings that Spark Connect shows


def is_settable(session: SparkSession, name: str) -> bool:
    """Return whether a setting takes effect for a query that starts now.

    Spark reports its RocksDB settings and the file manager as not modifiable, but a query reads them when it starts.
    """
    return name.startswith(STATE_STORE) or name == FILE_MANAGER or session.conf.isModifiable(name)
