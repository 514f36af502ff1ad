"""The partitions of a producer's topic: which one a key selects, and how the producer notices that partitions were added."""

from __future__ import annotations

from typing import Final

from millstream.core.model.errors import BrokerUnavailableError, FanOutError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import Partitions
from millstream.drivers.kafka.clients import ClientSettings, log
from millstream.drivers.kafka.fanout.control_log import ControlLog

_INTERVAL: Final = "topic.metadata.refresh.interval.ms"
_INTERVAL_MS: Final = 300_000


class PartitionChoice:
    """The partitions of a topic, as the brokers last listed them. They are never fewer than before.

    Args:
        settings: With librdkafka's ``topic.metadata.refresh.interval.ms``: how often the brokers are asked, in ms; -1 means never.
        topic: The topic of ``control``.
        now_s: The time, in monotonic seconds.
    """

    def __init__(self, settings: ClientSettings, topic: str, control: ControlLog, now_s: float) -> None:
        self._topic = topic
        self._control = control
        self._count = control.partitions
        self._interval_s = int(settings.get(_INTERVAL, _INTERVAL_MS)) / 1000
        self._asked_s = now_s
        self.of_key = Partitions(self._count)
        """The partition of each key."""

    def primary(self, topic: str, partition: int) -> TopicPartition:
        """Return a partition that exists.

        Raises:
            FanOutError: If it does not exist, or the topic is another one.
        """
        if topic != self._topic or not 0 <= partition < self._count:
            raise FanOutError(
                f"a record for partition {partition} of topic {topic!r} cannot be sent: this producer sends to "
                f"{self._topic!r}, which has {self._count} partitions. Create a producer for each topic"
            )
        return TopicPartition(topic, partition)

    def asked_for_more(self, now_s: float) -> bool:
        """Ask the brokers, if it is time to, how many partitions the topic has. Return whether there are more."""
        if self._interval_s < 0 or now_s - self._asked_s < self._interval_s:
            return False
        self._asked_s = now_s
        try:
            return self._control.count_partitions() > self._count
        except BrokerUnavailableError as error:
            log.info("the partitions of %s are not known now: %s", self._topic, error)
            return False

    def add(self) -> None:
        """Use the partitions that the brokers have listed. Keys then select other partitions."""
        self._count = self._control.partitions
        self.of_key = Partitions(self._count)
