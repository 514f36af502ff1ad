"""``EmbeddedKafka``: a real Kafka broker for tests, demos and benchmarks, as a context manager.

The broker is Apache Kafka itself: one node, or a cluster of brokers that are their own controllers. PySpark's Ivy resolves the jars (see
``resolve_jars`` for ``MILLSTREAM_CACHE_DIR``, ``MILLSTREAM_IVY_SETTINGS`` and ``MILLSTREAM_KAFKA_JARS``). Tests encounter real behaviour:
transactions, offsets with gaps, lost records, brokers that pause or crash. Only Java 17 is required, and no container runtime.

Nothing is left behind: the broker ends with ``stop()``, and also when this Python process ends in any way, including SIGKILL. Its data
are in a temporary directory unless the caller names one.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self, final

from confluent_kafka.admin import AdminClient

from millstream.testing._admin import BrokerAdmin, HangingTransaction, find_hanging
from millstream.testing._broker import BrokerOptions
from millstream.testing._cluster import Cluster, check_sizes
from millstream.testing._jars import KAFKA_VERSION, resolve_jars
from millstream.testing._java import EmbeddedKafkaError
from millstream.testing._records import ConsumedRecord, Isolation, Outgoing, Payload, read_all, write_all

__all__ = [
    "KAFKA_VERSION",
    "ConsumedRecord",
    "EmbeddedKafka",
    "EmbeddedKafkaError",
    "HangingTransaction",
    "Isolation",
    "Outgoing",
    "Payload",
    "resolve_jars",
]

_TOOLS = {
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}


@final
class EmbeddedKafka:
    """A real Kafka broker, or a cluster of several, that ends with this Python process at the latest.

    Start, stop, kill, pause and restart it from one thread; any thread may read and write in the meantime. Other processes connect
    through ``bootstrap_servers``.

    Args:
        partitions: Default number of partitions of a new topic.
        properties: Properties of the broker, by name as in ``server.properties``; they override the defaults of this class.
        auto_create_topics: Whether the broker creates topics on first use.
        directory: Directory for configuration, log and data, kept after the stop and reused by a later broker. None: a temporary one.
        heap: Maximum Java heap of each broker, as in ``-Xmx``; None uses 512 MB, or 256 MB in a cluster.
        java_options: Additional options of each JVM, such as ``["-XX:TieredStopAtLevel=4"]`` for throughput instead of a quick start.
        brokers: Number of brokers. With three or more, all topics, including those of transactions and groups, have three
            replicas, and ``min.insync.replicas`` is 2: one broker may crash without the loss of an acknowledged record.
        relayed: For each broker, a second port on which it listens, and the port of a relay, advertised to clients of that port.

    Raises:
        ValueError: If ``partitions`` or ``brokers`` is less than 1, or ``relayed`` has not one entry for each broker.

    Example:
        >>> with EmbeddedKafka() as kafka:
        ...     kafka.create_topic("words", partitions=1)
        ...     kafka.produce("words", [("a", "1", 1_000), ("b", None, 2_000)])
        ...     [(record.key, record.value, record.timestamp) for record in kafka.consume("words")]
        [(b'a', b'1', 1000), (b'b', None, 2000)]
    """

    def __init__(
        self,
        *,
        partitions: int = 4,
        properties: Mapping[str, str | int | bool] | None = None,
        auto_create_topics: bool = False,
        directory: str | Path | None = None,
        heap: str | None = None,
        java_options: Sequence[str] = (),
        brokers: int = 1,
        relayed: Sequence[tuple[int, int]] = (),
    ) -> None:
        check_sizes(partitions, brokers, relayed)
        java = (f"-Xmx{heap or ('512m' if brokers == 1 else '256m')}", *java_options)
        self._options = BrokerOptions(partitions, properties or {}, auto_create_topics, java, tuple(relayed))
        self._size = brokers
        self._directory = None if directory is None else Path(directory).absolute()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._started: Cluster | None = None
        self._client: AdminClient | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start the broker on free ports and wait until it answers. A ``with`` statement calls it.

        Returns:
            This object.

        Raises:
            EmbeddedKafkaError: If it is already started, Java or the jars are missing, or the broker did not start (with its last log lines).
        """
        if self._started is not None:
            raise EmbeddedKafkaError("it is already started; after kill() use restart(), or stop() it first")
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="millstream-kafka-", ignore_cleanup_errors=True
            )
            home = Path(self._temporary.name)
        else:
            home = self._directory
            home.mkdir(parents=True, exist_ok=True)
        try:
            cluster = Cluster(home, self._options, self._size)
            self._client = cluster.start()
            self._started = cluster
        finally:
            if self._started is None:
                self._discard_temporary()
        return self

    def stop(self) -> None:
        """Stop the broker and wait until it has exited. Has no effect if it is not started. The end of a ``with`` statement calls it.

        With a ``directory``, the broker is shut down in order. With temporary data, it is killed and the data are deleted.
        """
        cluster, self._started, self._client = self._started, None, None
        if cluster is not None:
            cluster.end(None, orderly=self._directory is not None)
        self._discard_temporary()

    def kill(self, broker: int | None = None) -> None:
        """Kill a broker with SIGKILL, like a crash. Ports and data are kept for ``restart``.

        Args:
            broker: The number of the broker, from 0; None kills all.

        Raises:
            EmbeddedKafkaError: If it is not started, or there is no such broker.

        Example:
            >>> with EmbeddedKafka(brokers=3) as cluster:
            ...     cluster.create_topic("words", partitions=1)
            ...     cluster.kill(0)
            ...     cluster.produce("words", [("a", "1")])
            ...     cluster.restart(0)
            ...     len(cluster.consume("words"))
            1
        """
        self._cluster.end(broker, orderly=False)

    def restart(self, broker: int | None = None) -> None:
        """Restart a broker with the same ports and data. A running broker is first shut down in order.

        Args:
            broker: The number of the broker, from 0; None restarts all.

        Raises:
            EmbeddedKafkaError: If the broker was not started before, or does not start again.
        """
        self._client = self._cluster.restart(broker)

    def pause(self, broker: int | None = None) -> None:
        """Suspend a broker with SIGSTOP: connections stay open, but it does not answer until ``resume``.

        Args:
            broker: The number of the broker, from 0; None pauses all.

        Raises:
            EmbeddedKafkaError: If it is not started.
        """
        self._cluster.signal(broker, signal.SIGSTOP)

    def resume(self, broker: int | None = None) -> None:
        """Resume a paused broker (SIGCONT).

        Args:
            broker: The number of the broker, from 0; None resumes all.

        Raises:
            EmbeddedKafkaError: If it is not started.
        """
        self._cluster.signal(broker, signal.SIGCONT)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers, as comma-separated ``host:port``. They stay the same until ``stop``.

        Raises:
            EmbeddedKafkaError: If the broker is not started.
        """
        return self._cluster.bootstrap_servers

    @property
    def pid(self) -> int:
        """Process id of the broker; in a cluster, of the first running broker.

        Raises:
            EmbeddedKafkaError: If no broker process runs.
        """
        running = self._cluster.pids()
        if not running:
            raise EmbeddedKafkaError(
                "the broker is not running: it was killed or has crashed; restart() starts it again"
            )
        return min(running.items())[1]

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str | int] | None = None
    ) -> None:
        """Create a topic and wait until it can be used.

        Args:
            name: Name of the topic.
            partitions: Number of partitions; None uses the default of this broker.
            config: Topic configuration. ``retention.ms`` is -1 unless given here.

        Raises:
            EmbeddedKafkaError: If the broker refuses, for example because the topic exists.
        """
        count = self._options.partitions if partitions is None else partitions
        self._admin.create_topic(name, count, config or {})

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it no longer exists.

        Args:
            name: Name of the topic.

        Raises:
            EmbeddedKafkaError: If the broker refuses, for example because the topic does not exist.
        """
        self._admin.delete_topic(name)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the oldest records of partitions, as retention would.

        Args:
            topic: Name of the topic.
            before: For each partition, the offset of the first record to keep.

        Raises:
            EmbeddedKafkaError: If the broker refuses, for example because an offset is beyond the end.
        """
        self._admin.delete_records(topic, before)

    def produce(self, topic: str, records: Iterable[Outgoing], *, partition: int | None = None) -> None:
        """Write records in the given order and wait until the broker has acknowledged all of them.

        Args:
            topic: Name of the topic.
            records: ``(key, value)`` or ``(key, value, timestamp)``. Keys and values are bytes, str (written as UTF-8) or None (null);
                timestamps are positive ms since the epoch (default: the current time).
            partition: The partition for all records. None chooses by the murmur2 hash of the key, as in Java; records with a null key go
                to any partition.

        Raises:
            EmbeddedKafkaError: If the topic does not exist, or a record was not acknowledged.
            ValueError: If a timestamp is not positive.

        Example:
            >>> kafka.produce("clicks", [("ann", b"1", 1_700_000_000_000), (None, "no key"), ("ann", None)])
        """
        if not self._options.auto_create_topics:
            self._admin.partitions(topic)
        write_all(self.bootstrap_servers, topic, records, partition=partition)

    def consume(self, topic: str, *, isolation: Isolation = "read_uncommitted") -> list[ConsumedRecord]:
        """Read all records that a topic currently contains.

        Args:
            topic: Name of the topic.
            isolation: With ``"read_committed"``, records of open and aborted transactions are skipped. Because a broker answers a commit
                before its records can be read, the call waits up to 10 s for open transactions to end.

        Returns:
            The records by partition, then by offset.

        Raises:
            EmbeddedKafkaError: If the topic does not exist, or the broker does not answer.
        """
        ends = self._admin.readable_ends(topic, isolation)
        return read_all(self.bootstrap_servers, topic, ends, isolation=isolation)

    def end_offsets(self, topic: str, *, isolation: Isolation = "read_uncommitted") -> dict[int, int]:
        """Return the offset of the next record of each partition.

        Args:
            topic: Name of the topic.
            isolation: With ``"read_committed"``, the last stable offsets: in a partition with open transactions, the offset of the
                first record of the oldest open transaction.

        Returns:
            Offsets by partition, including transaction markers.

        Raises:
            EmbeddedKafkaError: If the topic does not exist, or the broker does not answer.
        """
        return self._admin.end_offsets(topic, isolation)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets that a consumer group has committed.

        Args:
            group: Name of the group.
            topic: Name of the topic.

        Returns:
            Offsets by partition, without partitions that have no commit; ``{}`` for an unknown group.

        Raises:
            EmbeddedKafkaError: If the broker does not answer.
        """
        return self._admin.committed(group, topic)

    def tool(self, name: str, *args: str, stdin: str = "") -> str:
        """Run one of Kafka's own command line tools on this broker.

        Args:
            name: The name of the tool, such as ``"kafka-consumer-groups"``.
            args: Its arguments; ``--bootstrap-server`` is added.
            stdin: Its standard input.

        Returns:
            Its standard output.

        Raises:
            EmbeddedKafkaError: If the tool does not exist, failed, or took longer than two minutes.

        Example:
            >>> "clicks" in kafka.tool("kafka-topics", "--list").splitlines()
            True
        """
        if name not in _TOOLS:
            raise EmbeddedKafkaError(f"there is no tool {name!r} here; the tools are {', '.join(_TOOLS)}")
        return self._cluster.run_main(
            _TOOLS[name], ["--bootstrap-server", self.bootstrap_servers, *args], stdin=stdin
        )

    def hanging_transactions(self) -> list[HangingTransaction]:
        """Find transactions that are open in partitions although their coordinator does not know them (KIP-664).

        No producer can end these transactions, and ``read_committed`` consumers never read past them.

        Returns:
            One entry per partition.

        Raises:
            EmbeddedKafkaError: If the broker does not answer.

        Example:
            >>> with EmbeddedKafka() as kafka:
            ...     kafka.hanging_transactions()
            []
        """
        return find_hanging(self.tool, [number + 1 for number in self._cluster.pids()])

    def abort_transaction(self, hanging: HangingTransaction) -> None:
        """End a transaction that :meth:`hanging_transactions` has found, in one partition (KIP-664).

        Producers with the same transactional id must have ended before; otherwise, their new transaction would be part of it.

        Raises:
            EmbeddedKafkaError: If the broker does not answer, or the transaction does not exist.
        """
        options = ["--topic", hanging.topic, "--partition", str(hanging.partition)]
        self.tool("kafka-transactions", "abort", *options, "--start-offset", str(hanging.start_offset))

    @property
    def _cluster(self) -> Cluster:
        if self._started is None:
            raise EmbeddedKafkaError(
                "the broker is not started: use `with EmbeddedKafka() as kafka:` or start()"
            )
        return self._started

    @property
    def _admin(self) -> BrokerAdmin:
        if self._client is None:
            raise EmbeddedKafkaError(f"no broker runs on {self.bootstrap_servers}")
        return BrokerAdmin(self._client, self.bootstrap_servers)

    def _discard_temporary(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
