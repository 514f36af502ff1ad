"""Queries of local copies on other hosts: the application listens, Spark starts a process on each host, and these processes answer.

Nothing listens or runs until the first query of a store whose local copy is on another host.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.queries.copy_reader import CopyReader
from millstream.drivers.remote_stores.host_listener import HostListener
from millstream.drivers.remote_stores.remote_copy import RemoteCopy
from millstream.drivers.remote_stores.store_server import CopyRequest
from millstream.edge.queries.host_process import HostProcessSpec, start_host_process

log = logging.getLogger("millstream.queries")

_KEY_BYTES: Final = 32
_CONNECT_S: Final = 2.0


class StoreHosts:
    """The processes that read local copies on other hosts. Thread-safe.

    Args:
        check_key: Raises a ``StoreError`` if Spark would send the key of the connections unprotected.
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        check_key: Callable[[SparkSession], None],
        directory: Callable[[], str],
    ) -> None:
        self._session = session
        self._check_key = check_key
        self._directory = directory
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._listener: HostListener | None = None
        self._wanted: set[str] = set()
        self._starting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def reader(self, host: str, task: str, engine: str) -> CopyReader:
        return RemoteCopy(partial(self._ask, host), task, engine)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._listener is not None:
                self._listener.close()

    def _ask(self, host: str, request: CopyRequest) -> tuple[str, Any]:
        listener = self._listener
        channel = None if listener is None else listener.channel(host)
        if listener is None or channel is None:
            self._start(host)
            raise CopyMovedError(
                f"no process is connected yet on host {host!r}, where task {request.task} last ran"
            )
        try:
            kind, value = channel.ask(tuple(request))
        except (OSError, ValueError) as error:
            listener.lose(host, channel)
            raise CopyMovedError(f"host {host!r} does not answer: {error}") from None
        return kind, value

    def _start(self, host: str) -> None:
        """Let Spark start the processes in the background, unless a start is already running.

        Raises:
            StoreError: If the application has ended, or the key would be sent unprotected.
        """
        with self._lock:
            if self._closed:
                raise StoreError(f"the application has ended, and host {host!r} is no longer queried")
            self._wanted.add(host)
            if self._starting is not None and self._starting.is_alive():
                return
            session = self._session()
            self._check_key(session)
            if self._listener is None:
                interface = session.sparkContext.getConf().get("spark.driver.bindAddress")
                self._listener = HostListener(interface or _driver_host(session), self._key)
                log.info("executor hosts connect to port %d for queries", self._listener.port)
            self._starting = threading.Thread(
                target=self._run_job,
                args=(session, self._listener),
                name="millstream-query-start",
                daemon=True,
            )
            self._starting.start()

    def _run_job(self, session: SparkSession, listener: HostListener) -> None:
        context = session.sparkContext
        context.setLocalProperty("spark.job.description", "millstream: read copies of stores for queries")
        known = listener.hosts() | {socket.gethostname()}
        address = _driver_host(session), listener.port
        spec = HostProcessSpec(address, self._key, self._directory(), known)
        try:
            slots = range(2 * context.defaultParallelism)
            context.parallelize(slots, len(slots)).foreachPartition(partial(start_host_process, spec))
        except Exception as error:  # whatever Spark raises
            if not self._closed:
                log.warning("could not start processes on other hosts to answer queries: %s", error)
        with self._lock:
            wanted = frozenset(self._wanted)
            self._wanted.clear()
        listener.await_hosts(wanted, _CONNECT_S)


def _driver_host(session: SparkSession) -> str:
    """Return the address at which executors reach the Spark driver."""
    return str(session.sparkContext.getConf().get("spark.driver.host"))
