"""Election: which of several drivers of an application runs it.

The drivers are members of the group ``<application>-driver``, which reads the topic of that name: one partition, no records. The
member that Kafka assigns the partition to runs the application; the others stand by. Kafka notices a dead member after
``session.timeout.ms`` and assigns the partition to another one. A member that ends leaves the group, and is replaced at once.

A driver that stood still, or could not reach the brokers, for longer than the session is not a member any more. When it is again,
either the partition is its own as before, or somebody else runs the application and it has to end. Until it knows, it may still
deliver: under exactly once the marks refuse that (see ``marks``), at least once records may be sent twice, as after a crash.

The assignor is a sticky one: with others, a driver that joins could take the partition from the one that runs.

Source: KIP-429 (incremental rebalancing); the standby tasks of Kafka Streams are about state, which a checkpoint holds here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from millstream.core.topology.internal import DRIVER_CONFIG, driver_topic
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import ClientSettings, made

log = logging.getLogger("millstream.kafka")

SESSION_MS: Final = 6_000
"""The shortest that a broker allows by default (``group.min.session.timeout.ms``)."""
_POLL_S: Final = 0.2
_CLOSE_S: Final = 5.0
_OWN: Final = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 1_000,
    "enable.auto.commit": False,
    "auto.offset.reset": "latest",
    "fetch.wait.max.ms": 5_000,
}


class Election:
    """A candidate. Takes part from its creation until :meth:`leave`.

    Args:
        replication_factor: Number of replicas of the topic, if it is created; -1 for the broker's default.
        timeout_s: Timeout of a request, seconds.

    Raises:
        BrokerUnavailableError: If no broker answers in time.
    """

    def __init__(
        self, settings: ClientSettings, application_id: str, replication_factor: int, timeout_s: float
    ) -> None:
        self._topic = driver_topic(application_id)
        self._broker = Broker(settings, self._topic, True, timeout_s)
        self._broker.ensure_topic(self._topic, 1, DRIVER_CONFIG, replication_factor)
        self._consumer: Consumer = made(Consumer, {**settings, "group.id": self._topic, **_OWN})
        self._elected, self._replaced, self._leaving = (threading.Event() for _ in range(3))
        self._in_doubt = False
        self._on_replaced: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._take_part, name="millstream-election", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until this driver is elected, at most ``timeout_s`` seconds; return whether it is."""
        return self._elected.wait(timeout_s)

    def wait_replaced(self, timeout_s: float) -> bool:
        """Wait until another driver is elected in place of this one, at most ``timeout_s`` seconds; return whether one is."""
        return self._replaced.wait(timeout_s)

    def when_replaced(self, call: Callable[[], None]) -> None:
        """Call a function when another driver is elected in place of this one: in another thread, or now if one is."""
        self._on_replaced = call
        if self._replaced.is_set():
            call()

    def leave(self) -> None:
        """Leave the group, so that another driver is elected at once. Leaving twice is harmless."""
        self._leaving.set()
        self._thread.join(_CLOSE_S)

    def _take_part(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        while not self._leaving.is_set():
            try:
                self._consumer.poll(_POLL_S)
            except KafkaException as error:
                log.warning("the election by %s: %s", self._topic, error)
            if self._in_doubt and self._has_another_driver():
                self._in_doubt = False
                self._replaced.set()
                threading.Thread(target=self._on_replaced, name="millstream-replaced", daemon=True).start()
        self._consumer.close()

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._in_doubt = False
            self._replaced.clear()
            self._elected.set()

    def _revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions and not self._leaving.is_set():
            log.warning("%s is no longer assigned to this driver", self._topic)
            self._elected.clear()
            self._in_doubt = True

    def _has_another_driver(self) -> bool:
        """Return whether the group has another driver; False if no broker answers."""
        try:
            future = self._broker.admin().describe_consumer_groups([self._topic])[self._topic]
            members = future.result(self._broker.timeout_s).members
        except KafkaException:
            return False
        return any(
            member.assignment.topic_partitions and member.member_id != self._consumer.memberid()
            for member in members
        )
