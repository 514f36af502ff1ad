"""The Spark settings that a query wants: the purpose of each, and the loss without it.

Spark reads some settings when a query starts, so each query sets them in any session. It reads the others when the session is created.
If an existing session lacks such settings, the user is warned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from millstream.core.model.errors import SparkRuntimeError
from millstream.drivers.spark.driver.launch import is_local, is_one_process
from millstream.drivers.spark.driver.modules import is_classic

logger = logging.getLogger("millstream.application")

STATE_STORE: Final = "spark.sql.streaming.stateStore."
PROVIDER: Final = f"{STATE_STORE}providerClass"
FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_CENTURY_MS: Final = 100 * 365 * 24 * 3_600_000
_WITHOUT_COLUMNS: Final = ".HDFSBackedStateStoreProvider"


def _everywhere(_master: str) -> bool:
    return True


@dataclass(frozen=True)
class WantedSetting:
    """A Spark setting that a query needs.

    Attributes:
        default: Spark's default, for a setting that is read when a session is created. None if each query can set it.
        concerns: Whether a session on a master needs the setting.
    """

    name: str
    value: str
    without: str
    default: str | None = None
    concerns: Callable[[str], bool] = _everywhere


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
        concerns=is_local,  # a cluster is protected as a whole
    ),
    WantedSetting(
        "spark.storage.blockManagerHeartbeatTimeoutMs",
        str(_CENTURY_MS),
        "the application ends ten minutes after its machine was suspended for two minutes, or its clock set ahead by two: Spark takes "
        "the executor for dead, and an executor inside the driver cannot register again",
        default="120000",
        concerns=is_one_process,
    ),
)
"""All settings that queries need. docs/how-to/run-on-your-own-spark-session.md contains the same table."""

QUERY_CONF: Final[Mapping[str, str]] = {want.name: want.value for want in WANTED if want.default is None}
"""Settings that a query needs in any session."""

AS_READ_CONF: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",  # this alone would compute them, too
}
"""Further settings for queries whose readers call no user functions.

A repeated read of a range returns the same rows, so Spark need not compare them.
"""


def session_conf(master: str) -> Mapping[str, str]:
    """Return the settings of a session that is created for an application."""
    return {want.name: want.value for want in WANTED if want.default is not None and want.concerns(master)}


def lacking(conf: Mapping[str, str], chosen: Collection[str] = ()) -> list[str]:
    """Return the settings that a session lacks and that can no longer be changed, one line each."""
    master = conf.get("spark.master", "")
    return [
        f"{want.name}={want.value}: without it {want.without}"
        for want in WANTED
        if want.default is not None
        and conf.get(want.name, want.default) != want.value
        and want.name not in chosen
        and want.concerns(master)
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
