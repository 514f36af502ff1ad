"""Checks on a cluster, before an application sends secrets to Spark or keeps state in a checkpoint.

A ``local`` master runs everything in this process, and ``local-cluster`` runs everything on this host. Any other master sends the
settings of tasks to other hosts, and each host reads and writes the checkpoint. All executors of a master that listens on the loopback
interface are on this host.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import SparkSession

from millstream.core.model.errors import SettingsError, StoreError
from millstream.drivers.spark.driver.launch import is_local
from millstream.drivers.spark.driver.spark_session import scheme_of
from millstream.edge.settings.settings import Settings

_ON_THIS_HOST: Final = re.compile(r"spark://(localhost|127(\.\d+){3}|\[::1\]):\d+")


def check_secrets(settings: Settings, session: SparkSession) -> None:
    """Refuse to send secrets of Kafka's clients to Spark without authentication."""
    refuse_bare_secrets(settings, str(session.sparkContext.master), protected=_authenticates(session))


def refuse_bare_secrets(settings: Settings, master: str, *, protected: bool) -> None:
    """Refuse to send secrets over a master without protection; see :func:`check_secrets`."""
    secrets = settings.secrets_in_clients
    if not secrets or protected or settings.on_unprotected_secrets == "send" or is_local(master):
        return
    raise SettingsError(
        f"the settings of Kafka's clients contain {', '.join(map(repr, secrets))}, and Spark would send that to executors of {master} "
        "without authentication, so anyone who can connect to one of its ports could read it. Use a reference to the "
        f"secret, which executors resolve: kafka={{{secrets[0]!r}: ms.secret.file('/run/secrets/...')}}, or ms.secret.env(...). Or set "
        "spark.authenticate and spark.network.crypto.enabled for the whole cluster. on_unprotected_secrets='send' allows it as it is"
    )


def _authenticates(session: SparkSession) -> bool:
    return session.sparkContext.getConf().get("spark.authenticate", "false") == "true"


def check_query_key(settings: Settings, session: SparkSession) -> None:
    """Refuse to send the key of query connections to executors without authentication."""
    refuse_query_key(settings, str(session.sparkContext.master), protected=_authenticates(session))


def refuse_query_key(settings: Settings, master: str, *, protected: bool) -> None:
    """Refuse to send the key over a master without protection; see :func:`check_query_key`."""
    if protected or settings.on_unprotected_secrets == "send" or is_local(master):
        return
    raise StoreError(
        f"the store is on another host, and Spark would send the key of the connection to it over {master} without authentication: "
        "set spark.authenticate for the whole cluster. on_unprotected_secrets='send' allows it as it is"
    )


def check_checkpoint(settings: Settings, application_id: str, session: SparkSession) -> None:
    """Refuse a checkpoint that executors on other hosts cannot reach.

    Raises:
        SettingsError: If the checkpoint is on a local disk, and ``checkpoint_is_shared`` is not set.
    """
    location = settings.checkpoint(application_id)
    if not settings.checkpoint_is_shared and scheme_of(session, location) == "file":
        refuse_local_checkpoint(location, str(session.sparkContext.master))


def refuse_local_checkpoint(location: str, master: str) -> None:
    """Refuse a checkpoint on a local disk under a master with executors on other hosts; see :func:`check_checkpoint`."""
    if is_local(master) or _ON_THIS_HOST.fullmatch(master):
        return
    raise SettingsError(
        f"the checkpoint {location} is on a local disk, but executors of {master} may run on other hosts: each would write its part of "
        "the state to its own disk, and it could not be found after a failure. Set checkpoint_location to a file system "
        "that all hosts reach, such as 'hdfs://namenode/millstream/orders' or 's3a://bucket/orders'; if this path is the same directory "
        "on every host, for example over NFS, set checkpoint_is_shared=True"
    )
