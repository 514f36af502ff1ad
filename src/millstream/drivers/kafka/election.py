"""Election: selects which of several drivers of an application runs it.

The drivers are members of the group ``<application>-driver``. The group reads the topic of the same name, which has one partition and no
records. The member to which Kafka assigns the partition runs the application, and the others stand by. Kafka notices a dead member after
``session.timeout.ms`` and assigns the partition to another one. A member that ends leaves the group and is replaced immediately.

A driver that was suspended, or could not reach the brokers, for longer than the session is no longer a member. When it rejoins, it either
receives the partition again, or another driver runs the application and this one must end. Until it knows, it may still deliver. Under
exactly-once delivery, the marks prevent this (see ``marks``). Under at-least-once delivery, records may be sent twice, as after a crash.

A driver may also start before it is elected, if the group had no other living member when it joined. The client id of a member names its
process, so that a restart on the same machine does not wait for the session of a process that was killed.

The assignor is sticky. With other assignors, a joining driver could take the partition from the running one.

Source: KIP-429 (incremental rebalancing). Standby tasks of Kafka Streams replicate state, which is in the checkpoint here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription

from millstream.core.model.errors import MillstreamError
from millstream.core.topology.internal import DRIVER_CONFIG, driver_topic
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import NOT_PERMITTED, ClientSettings, create_client, translated
from millstream.drivers.kafka.process_names import may_live, process_name

log = logging.getLogger("millstream.kafka")

SESSION_MS: Final = 6_000
"""The shortest session timeout that a broker allows by default (``group.min.session.timeout.ms``)."""
_POLL_S: Final = 0.1
_DOUBT_S: Final = 0.5
"""How often a member that may have been replaced asks, in seconds."""
_CLOSE_S: Final = 5.0
_OWN: Final = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 1_000,
    "max.poll.interval.ms": 300_000,  # the default; with a user's shorter one, a member could leave, or not be created at all
    "enable.auto.commit": False,
    "auto.offset.reset": "latest",
    "fetch.wait.max.ms": 5_000,
}


class Election:
    """A candidate of the election. It takes part from its creation until :meth:`leave`.

    Args:
        replication_factor: Number of replicas of the topic, if it is created. -1 means the broker's default.

    Attributes:
        rivals: The client ids of the living members that the group had when this candidate joined.

    Raises:
        MillstreamError: If no broker answers in time, or refuses the topic or the group to this user, or the topic has several partitions.
    """

    def __init__(
        self, settings: ClientSettings, broker: Broker, application_id: str, replication_factor: int
    ) -> None:
        self._topic = driver_topic(application_id)
        self._broker = broker
        partitions = self._broker.ensure_topic(self._topic, 1, DRIVER_CONFIG, replication_factor)
        if partitions > 1:
            raise MillstreamError(
                f"the topic {self._topic!r} has {partitions} partitions, so Kafka would elect several drivers at once. Delete the topic: the next "
                "start creates it with one partition, or create it so"
            )
        self.rivals = living_drivers(self._broker, application_id)
        own = {"group.id": self._topic, "client.id": process_name(self._topic), **_OWN}
        self._consumer: Consumer = create_client(Consumer, {**settings, **own})
        self._elected, self._replaced, self._leaving, self._decided = (threading.Event() for _ in range(4))
        self._refusal: MillstreamError | None = None
        """Why the brokers do not let this driver in; None if they do."""
        self._in_doubt = False
        self._on_replaced: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._take_part, name="millstream-election", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most ``timeout_s`` seconds until this driver is elected. Return whether it is elected.

        Raises:
            MillstreamError: If the brokers refuse the topic or the group to this user.
        """
        self._decided.wait(timeout_s)
        if (refusal := self._refusal) is not None:
            raise refusal
        return self._elected.is_set()

    def start_unelected(self) -> None:
        """Count as replaced, too, if another driver is elected before this one has been."""
        self._in_doubt = True

    def wait_replaced(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds until another driver is elected in place of this one. Return whether one is elected."""
        return self._replaced.wait(timeout_s)

    def when_replaced(self, call: Callable[[], None]) -> None:
        """Call a function when another driver is elected in place of this one: in another thread, or immediately if this has happened."""
        self._on_replaced = call
        if self._replaced.is_set():
            call()

    def leave(self) -> None:
        """Leave the group, so that another driver is elected immediately. Leaving twice is harmless."""
        self._leaving.set()
        self._thread.join(_CLOSE_S)

    def _take_part(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        try:
            self._poll_until_leaving()
        finally:
            self._consumer.close()  # a consumer that is not closed may block whatever destroys it

    def _poll_until_leaving(self) -> None:
        due = 0.0
        while not self._leaving.is_set():
            try:
                message = self._consumer.poll(_POLL_S)
                if message is not None and (error := message.error()) is not None:
                    self._note_error(error)
            except KafkaException as error:
                log.warning("election error from %s: %s", self._topic, error)
            if self._in_doubt and time.monotonic() >= due:
                due = time.monotonic() + _DOUBT_S
                self._resolve_doubt()

    def _note_error(self, error: KafkaError) -> None:
        """Note a refusal, which the client reports each time that it tries to join again. It recovers from all other errors."""
        if error.code() not in NOT_PERMITTED or self._refusal is not None:
            return
        self._refusal = translated(
            KafkaException(error), f"joining group {self._topic!r}", self._broker.servers
        )
        log.warning("this driver cannot be elected, and does not see other drivers: %s", self._refusal)
        self._decided.set()

    def _resolve_doubt(self) -> None:
        if self._elected.is_set():
            self._in_doubt = False
        elif self._has_another_driver():
            self._in_doubt = False
            self._replaced.set()
            threading.Thread(target=self._on_replaced, name="millstream-replaced", daemon=True).start()

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._in_doubt = False
            self._refusal = None
            self._replaced.clear()
            self._elected.set()
            self._decided.set()

    def _revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions and not self._leaving.is_set():
            log.warning("%s is no longer assigned to this driver", self._topic)
            self._elected.clear()
            self._decided.clear()
            self._in_doubt = True

    def _has_another_driver(self) -> bool:
        """Return whether the group, with this member in it, has another driver. Return False if no broker answers."""
        own = self._consumer.memberid()
        if not own:  # not in the group; without a connection, librdkafka (issue 4605) may end the process when it describes the group
            return False
        try:
            group = _group(self._broker, self._topic)
        except MillstreamError:
            return False
        # In other states than STABLE, the group still has members that have died, with what they were assigned.
        return (
            group is not None
            and group.state is ConsumerGroupState.STABLE
            and any(member.member_id == own for member in group.members)
            and any(
                member.assignment.topic_partitions and member.member_id != own for member in group.members
            )
        )


def living_drivers(broker: Broker, application_id: str) -> list[str]:
    """Return the client ids of the drivers of an application, without those that are known to have died.

    Raises:
        MillstreamError: If no broker answers in time, or refuses the group to this user.
    """
    group = _group(broker, driver_topic(application_id))
    members = [] if group is None else group.members
    return [member.client_id for member in members if may_live(member.client_id)]


def _group(broker: Broker, name: str) -> ConsumerGroupDescription | None:
    """Return a group; None if it does not exist yet."""

    def described() -> ConsumerGroupDescription | None:
        futures = broker.admin().describe_consumer_groups([name])
        try:
            group: ConsumerGroupDescription = futures[name].result(broker.timeout_s)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise
        return group

    return broker.ask(f"describing group {name!r}", described)
