"""Client settings, and clients that outlive a micro-batch.

Each Python process caches its clients (:func:`warm`), because a client costs a connection. The Spark driver drops the clients of an
application when it ends (:func:`hang_up`). Every process drops all clients before Python exits (:class:`Ending`). Settings are dicts with
librdkafka's names, created by ``millstream.edge.settings.settings``.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from millstream.core.model.errors import (
    BrokerUnavailableError,
    MillstreamError,
    SettingsError,
    TopicNotFoundError,
)
from millstream.drivers.kafka.client_callbacks import ClientLog
from millstream.drivers.kafka.secret_references import with_secrets

log = logging.getLogger("millstream.kafka")

# librdkafka waits half of it between the connections of a new client. The default, 100 ms, would delay a transaction by 40 ms.
QUICK_CONNECTION: Final = {"reconnect.backoff.ms": 20}
_CONNECT_S: Final = 2.0
_PATIENCE_S = 5.0
_CLOSE_S: Final = 1.0
"""How long to wait for a client with a thread of its own. Without brokers, it cannot end its session."""


class Ending:
    """Calls a function in a separate thread when the process exits. The process waits at most 5 s.

    A thread of librdkafka may call back into Python, so clients must be destroyed first. Destroying a client waits for its threads, and
    librdkafka has open bugs that deadlock these threads after the loss of a broker (librdkafka 4674, 5476). A connection must not keep a
    finished program from exiting.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Start the thread unless it is running (a fork has none). Python cannot start threads during its exit."""
        if self._begun.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._run, name="millstream-ending", daemon=True)
        self._thread.start()
        atexit.unregister(self._end)
        atexit.register(self._end)

    def _run(self) -> None:
        self._begun.wait()
        self._close()

    def _end(self) -> None:
        self._begun.set()
        if self._thread is not None:
            _await_end(self._thread, "process")


def _await_end(closing: threading.Thread, waiting: str) -> None:
    closing.join(_PATIENCE_S)
    if closing.is_alive():
        log.warning(
            "Kafka clients did not close within %.0f s; the %s ends without waiting for them",
            _PATIENCE_S,
            waiting,
        )


class ThreadedClient(ABC):
    """A client with a thread of its own, which keeps it alive. When the process drops its clients, it has to be closed."""

    @abstractmethod
    def close(self, timeout: float) -> None: ...


Client = TypeVar("Client")
ClientSettings = Mapping[str, Any]
"""librdkafka's settings by name, with ``bootstrap.servers`` and security."""

_CLIENT_LOG: Final = ClientLog()

_WARM: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}


def _close_all() -> None:
    _close_threads(tuple(_WARM.values()))
    _WARM.clear()


def _close_threads(clients: Iterable[Any]) -> None:
    for client in clients:
        if isinstance(client, ThreadedClient):
            with suppress(MillstreamError):  # nobody waits for its records any more
                client.close(_CLOSE_S)


_ENDING = Ending(_close_all)
_NO_BROKER = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._NOENT,
}
NOT_READY = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}
"""Errors while coordinators and leaders start or move. Requests are retried."""
_REFUSED = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
_NO_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
NOT_PERMITTED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
"""Errors of a producer whose transactional id another client has taken over."""
UNUSABLE: Final = FENCED | {KafkaError._FATAL, KafkaError._STATE}
"""Errors after which a producer can no longer be used."""
_NOT_SETTABLE = {KafkaError._INVALID_ARG, KafkaError._UNSUPPORTED_FEATURE, KafkaError._NOT_IMPLEMENTED}


def connect(producer: Producer, topic: str) -> None:
    """Wait until a new client is connected to a broker, but not long. If no broker answers, the next call reports it.

    Without a connection, ``init_transactions`` waits 500 ms before it looks for the coordinator again. The first answer may come over the
    bootstrap connection, which librdkafka then closes; the second does not.
    """
    with suppress(KafkaException):
        for _ in range(2):
            producer.list_topics(topic, _CONNECT_S)


def warm(make: Callable[..., Client], settings: ClientSettings) -> Client:
    """Return the process's client of a kind with these settings. The first call creates it.

    Raises:
        SettingsError: If librdkafka does not know a setting or refuses its value.
    """
    client = warmed(make, settings)
    if client is None:
        _ENDING.prepare()
        client = _WARM[_identity(make, settings)] = create_client(make, settings)
    return client


def warmed(make: Callable[..., Client], settings: ClientSettings) -> Client | None:
    """Return the client that :func:`warm` has created in this process, or None."""
    client: Client | None = _WARM.get(_identity(make, settings))
    return client


def _identity(make: Callable[..., Any], settings: ClientSettings) -> tuple[Any, ...]:
    name = f"{make.__module__}.{make.__qualname__}"
    return (name, tuple(sorted((key, str(value)) for key, value in settings.items())))


def create_client(make: Callable[..., Client], settings: ClientSettings) -> Client:
    """Create a client.

    Args:
        settings: librdkafka's settings. References to secrets are resolved here and nowhere else.

    Raises:
        SettingsError: If librdkafka does not know a setting or refuses its value, or if a secret is missing.
    """
    try:
        return make({"logger": _CLIENT_LOG, **with_secrets(settings)})
    except KafkaException as error:
        if error.args[0].code() not in _NOT_SETTABLE:
            raise
        raise SettingsError(
            f"the Kafka client rejects a setting: {error.args[0].str()}. Correct it in kafka={{...}}, consumer={{...}} "
            "or producer={...}; the names are those of librdkafka's CONFIGURATION.md"
        ) from None


def check(make: Callable[..., Any], settings: ClientSettings) -> None:
    """Check settings by creating a client that does not connect."""
    create_client(make, {name: value for name, value in settings.items() if name != "bootstrap.servers"})


def discard(client: Any) -> None:
    """Remove a client that cannot be reused from the cache. Several threads may do so at once."""
    for identity in [i for i, known in tuple(_WARM.items()) if known is client]:
        _WARM.pop(identity, None)


def hang_up(settings: ClientSettings) -> None:
    """Remove the clients with at least these settings from the cache, and close those that nothing else uses.

    They are closed in a separate thread, for which the caller waits at most 5 s: see :class:`Ending`.
    """
    wanted = {(key, str(value)) for key, value in settings.items()}
    clients = [_WARM.pop(known, None) for known in tuple(_WARM) if wanted.issubset(known[1])]

    def close() -> None:
        _close_threads(clients)
        clients.clear()

    closing = threading.Thread(target=close, name="millstream-closing", daemon=True)
    closing.start()
    _await_end(closing, "application")


def _unavailable(
    cause: KafkaError, doing: str, servers: str, problem: KafkaError | None
) -> BrokerUnavailableError:
    reported = "" if problem is None else "; " + re.sub(r" \(after [^)]*\)", "", problem.str())
    if problem is not None and problem.code() in _REFUSED:
        advice = (
            "A broker refuses the connection, or this client refuses the broker: check security.protocol, sasl.* and ssl.* in "
            "kafka={...}, consumer={...} and producer={...}, and the listener in bootstrap_servers"
        )
    else:
        advice = (
            "Check that the broker runs, that bootstrap_servers is correct, that these addresses and its advertised.listeners are "
            "reachable from here, and that security.protocol is the one of the listener"
        )
    return BrokerUnavailableError(
        f"no Kafka broker responds at {servers} (while {doing}: {cause.str()}{reported}). {advice}"
    )


def is_unavailable(error: KafkaError) -> bool:
    """Return whether an error means that no broker answers, so that a retry may help."""
    return error.code() in _NO_BROKER or error.code() in NOT_READY or error.retriable()


def translated(
    error: KafkaException, doing: str, servers: str, problem: KafkaError | None = None
) -> MillstreamError:
    """Return the error for users that corresponds to an error of the client.

    Args:
        doing: The operation, for example "reading topic 'lines'".
        problem: The last problem of a connection to a broker.
    """
    cause = error.args[0]
    if isinstance(cause, KafkaError) and is_unavailable(cause):
        return _unavailable(cause, doing, servers, problem)
    if isinstance(cause, KafkaError) and cause.code() in _NO_TOPIC:
        return TopicNotFoundError(
            f"the broker at {servers} has no such topic or partition (while {doing}: {cause.str()}). If it was deleted, create it again with "
            "as many partitions, and start over with another application id or checkpoint_location"
        )
    if isinstance(cause, KafkaError) and cause.code() in NOT_PERMITTED:
        return MillstreamError(
            f"the broker at {servers} does not permit this to the user of the client (while {doing}: {cause.str()}). Grant the permission, for "
            "example with kafka-acls, and try again"
        )
    return MillstreamError(
        f"the request to Kafka failed while {doing}: {cause.str() if isinstance(cause, KafkaError) else cause}. See the log of the broker at "
        f"{servers} for the reason"
    )
