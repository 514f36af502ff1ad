"""Both ends of the stream: writes the workload, and watches the progress of the application.

Progress is read only from the broker: the committed offsets of the group, and the end offsets of the output topic. While the broker
restarts, or a group's coordinator moves, the broker does not answer; the last answer then remains valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.drivers.kafka.fanout.key_range_producer import KeyRangeProducer
from millstream.drivers.spark.clock import host_clock
from millstream.testing._broker import QUIET_CLIENT
from millstream.testing.crash.processes import CrashTestError
from millstream.testing.crash.split_topic import SplitLogs
from millstream.testing.kafka import ConsumedRecord, EmbeddedKafka, EmbeddedKafkaError, Outgoing

HEADER = "number"
"""The header with the number of each record of the workload."""

_ANSWER_S = 2.0
_FLUSH_S = 60.0


@final
class Feeder:
    """Writes the workload, each record exactly once despite faults of the broker. Use it from one thread.

    Args:
        partitions: The partition count of the topic. Records without a key go to the partitions in turn.
        splits: Whether partitions of the topic are split and merged.
    """

    def __init__(
        self, servers: str, topic: str, records: Sequence[Outgoing], partitions: int, *, splits: bool = False
    ) -> None:
        self._topic = topic
        self._records = records
        self._partitions = partitions
        self._next = 0
        self._refused: list[str] = []
        self._producer: Producer | KeyRangeProducer
        if splits:
            settings = {"bootstrap.servers": servers, **QUIET_CLIENT}
            self._producer = KeyRangeProducer(settings, topic, patience_s=_FLUSH_S)
            return
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "on_delivery": self._delivered,
                **QUIET_CLIENT,
            }
        )

    def feed(self, up_to: int) -> None:
        """Send the records before a position that have not yet been sent.

        Raises:
            CrashTestError: If the broker has rejected a record.
        """
        for number in range(self._next, min(up_to, len(self._records))):
            key, value, *timestamp = self._records[number]
            options: dict[str, Any] = {"partition": number % self._partitions} if key is None else {}
            options["headers"] = [(HEADER, b"%d" % number)]
            if timestamp:
                options["timestamp"] = timestamp[0]
            self._producer.produce(self._topic, value, key, **options)
            self._next = number + 1

    def flush(self) -> None:
        """Wait until the broker has acknowledged all records sent.

        Raises:
            CrashTestError: If the broker has rejected a record, or does not answer.
        """
        left = self._producer.flush(_FLUSH_S)
        self.wait(0)
        if left:
            raise CrashTestError(f"the broker has not taken {left:,} records of the workload")

    def wait(self, seconds: float) -> None:
        """Let the Kafka client deliver records for some seconds.

        Raises:
            CrashTestError: If the broker has rejected a record.
        """
        self._producer.poll(seconds)
        if self._refused:
            raise CrashTestError(f"the broker rejected the workload: {self._refused[0]}")

    def close(self) -> None:
        if isinstance(self._producer, KeyRangeProducer):
            self._producer.close()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append(str(error))


@final
class Watch:
    """Watches the progress of an application. Use it from one thread.

    Attributes:
        processed: The number of input records before the group's committed offsets.
        written: The number of records and transaction markers in the output topic.

    Args:
        group: The application's id, which is the consumer group.
        splits: Whether partitions of the input topic are split and merged.
    """

    def __init__(
        self, kafka: EmbeddedKafka, group: str, input_topic: str, output_topic: str, *, splits: bool = False
    ) -> None:
        self.processed = 0
        self.written = 0
        self._kafka = kafka
        self._output = output_topic
        self._offsets: dict[tuple[str, int], int] = {}
        self._partitions = [
            TopicPartition(input_topic, partition) for partition in kafka.end_offsets(input_topic)
        ]
        self._logs = SplitLogs(kafka.bootstrap_servers, input_topic) if splits else None
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                **QUIET_CLIENT,
            }
        )

    def look(self) -> bool:
        """Query the broker; return whether there was progress."""
        before = self.processed, self.written
        try:
            partitions = self._partitions if self._logs is None else self._logs.partitions()
            committed = self._consumer.committed(partitions, timeout=_ANSWER_S)
            self.written = sum(self._kafka.end_offsets(self._output).values())
        except (KafkaException, EmbeddedKafkaError):
            return False
        for partition in committed:
            if partition.offset >= 0:
                self._offsets[partition.topic, partition.partition] = partition.offset
        counted = (
            sum(self._offsets.values()) if self._logs is None else self._logs.records_before(self._offsets)
        )
        self.processed = counted
        return before != (self.processed, self.written)

    def transaction_is_open(self) -> bool:
        """Return whether a transaction with records in the output topic is open."""
        try:
            return transaction_is_open(self._kafka, self._output)
        except EmbeddedKafkaError:
            return False

    def close(self) -> None:
        self._consumer.close()
        if self._logs is not None:
            self._logs.close()


def transaction_is_open(kafka: EmbeddedKafka, topic: str) -> bool:
    """Return whether a transaction with records in a topic is open.

    A broker publishes the offsets of a transaction as soon as ``__consumer_offsets`` has the marker of the transaction. The markers in
    other topics may be written later, so committed offsets do not prove that the records can be read.

    Raises:
        EmbeddedKafkaError: If the broker does not answer.
    """
    stable = kafka.end_offsets(topic, isolation="read_committed")
    return any(end > stable[partition] for partition, end in kafka.end_offsets(topic).items())


def lacks_coordinator(kafka: EmbeddedKafka, group: str, topic: str) -> bool:
    """Return whether the broker answers, but persistently reports that it does not coordinate a group."""
    try:
        kafka.committed(group, topic)
    except EmbeddedKafkaError as error:
        cause = error.__cause__
        return isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.NOT_COORDINATOR
    return False


def age_ms(records: Sequence[Outgoing]) -> int:
    """Return the age of the newest record by its timestamp, ms.

    Workloads are moved by this time. A broker derives the age of a producer from the timestamps of its records. After a restart, it forgets
    producers whose records are older than a day, and accepts the same records again if they are resent.
    """
    newest = max((record[2] for record in records if len(record) == 3), default=0)
    return host_clock() - newest


def number_of(record: ConsumedRecord) -> int:
    """Return the number of a record of the workload, from its header."""
    return int(dict(record.headers)[HEADER] or b"")


def moved(records: Sequence[Outgoing], later_ms: int) -> list[Outgoing]:
    """Return records with later timestamps. Records without a timestamp are unchanged."""
    return [(*record[:2], record[2] + later_ms) if len(record) == 3 else record for record in records]
