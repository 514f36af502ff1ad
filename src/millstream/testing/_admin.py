"""Administrative requests to a running broker: topics, offsets, deletions.

A broker that has just started or created a topic knows partitions before it leads them, and briefly reports that the leader is not
available. Such requests are retried; every other error is final.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple, TypeVar, final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from millstream.testing._java import EmbeddedKafkaError
from millstream.testing._records import Isolation

T = TypeVar("T")

_LEVELS: dict[Isolation, IsolationLevel] = {
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
    "read_committed": IsolationLevel.READ_COMMITTED,
}
_REQUEST_TIMEOUT_S = 30.0
# Per broker: librdkafka leaves a request at a broker that has just crashed until it times out.
_ANSWER_WITHIN_S = 5.0
_PAUSE_S = 0.02
_HEARD_WITHIN_S = 10.0  # until all brokers of a cluster know a new topic
_ENDED_WITHIN_S = 10.0  # until transactions end: brokers answer a commit before they write its markers
_NOT_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
_NO_ANSWER_YET = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
_NOT_HEARD_YET = {*_NOT_YET, KafkaError.UNKNOWN_TOPIC_OR_PART}
"""Errors to retry for a topic that one broker of a cluster has reported: its leader may not know it yet."""


@final
class BrokerAdmin:
    """Administrative requests. Any thread may use it. ``EmbeddedKafka`` documents each request."""

    def __init__(self, client: AdminClient, servers: str) -> None:
        self._client = client
        self._servers = servers

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str | int]) -> None:
        settings = {key: str(value) for key, value in {"retention.ms": -1, **config}.items()}
        topic = NewTopic(name, num_partitions=partitions, config=settings)
        self._all_of(f"create topic {name}", lambda client: client.create_topics([topic]))
        self._await(lambda: len(self._partitions_of(name)) == partitions, f"topic {name} to appear")
        self.end_offsets(name)

    def delete_topic(self, name: str) -> None:
        self._all_of(f"delete topic {name}", lambda client: client.delete_topics([name]))
        self._await(lambda: not self._partitions_of(name), f"topic {name} to disappear")

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        self._all_of(f"delete records of {topic}", lambda client: client.delete_records(offsets))

    def end_offsets(self, topic: str, isolation: Isolation = "read_uncommitted") -> dict[int, int]:
        latest = OffsetSpec.latest()
        wanted = {TopicPartition(topic, partition): latest for partition in self.partitions(topic)}
        level = {"isolation_level": _LEVELS[isolation]}
        answer = self._all_of(
            f"end offsets of {topic}", lambda client: client.list_offsets(wanted, **level), _NOT_HEARD_YET
        )
        return {partition.partition: result.offset for partition, result in answer.items()}

    def readable_ends(self, topic: str, isolation: Isolation) -> dict[int, int]:
        """Return the end offsets. With ``read_committed``, wait for open transactions in front of them, but not for long."""
        ends = self.end_offsets(topic)

        def are_stable() -> bool:
            stable = self.end_offsets(topic, isolation)
            return all(stable[partition] >= end for partition, end in ends.items())

        if isolation == "read_committed":
            _holds_within(_ENDED_WITHIN_S, are_stable)
        return ends

    def committed(self, group: str, topic: str) -> dict[int, int]:
        # The admin client's list_consumer_group_offsets is not used, because librdkafka crashes in it while a coordinator moves.
        # With read_uncommitted, the request does not wait for open transactions of a killed program, which end at their timeout.
        settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        consumer = Consumer({"bootstrap.servers": self._servers, **settings})
        try:
            wanted = [TopicPartition(topic, partition) for partition in self._partitions_of(topic)]
            if not wanted:
                return {}
            answer = self._ask(
                f"offsets of group {group}", lambda: consumer.committed(wanted, timeout=_REQUEST_TIMEOUT_S)
            )
        finally:
            consumer.close()
        return {partition.partition: partition.offset for partition in answer if partition.offset >= 0}

    def partitions(self, topic: str) -> list[int]:
        deadline = time.monotonic() + (_HEARD_WITHIN_S if "," in self._servers else 0)
        while not (partitions := self._partitions_of(topic)) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)  # brokers of a cluster learn of a new topic at different times
        if not partitions:
            raise EmbeddedKafkaError(
                f"there is no topic {topic!r} on {self._servers}; create_topic() creates it"
            )
        return partitions

    def _all_of(
        self,
        what: str,
        ask: Callable[[AdminClient], Mapping[T, Future[Any]]],
        not_yet: Collection[int] = _NOT_YET,
    ) -> dict[T, Any]:

        def answers() -> dict[T, Any]:
            return {key: future.result(_REQUEST_TIMEOUT_S) for key, future in ask(self._client).items()}

        return self._ask(what, answers, not_yet)

    def _ask(self, what: str, question: Callable[[], T], not_yet: Collection[int] = _NOT_YET) -> T:
        """Send a request, and retry while a leader or coordinator is not yet available."""
        deadline = time.monotonic() + _REQUEST_TIMEOUT_S
        while True:
            try:
                return question()
            except KafkaException as error:
                if error.args[0].code() not in not_yet or time.monotonic() > deadline:
                    raise EmbeddedKafkaError(f"{what} on {self._servers}: {error.args[0]}") from error
                time.sleep(_PAUSE_S)
            except FutureTimeoutError as error:
                raise EmbeddedKafkaError(
                    f"{what}: no answer from {self._servers}; check whether the broker is paused"
                ) from error

    def _partitions_of(self, topic: str) -> list[int]:
        """Return all partitions of a topic, with or without a leader. Lists all topics, because a request for one topic could create it."""
        metadata = self._ask(
            "metadata", lambda: self._client.list_topics(timeout=_ANSWER_WITHIN_S), _NO_ANSWER_YET
        )
        answer = metadata.topics.get(topic)
        return sorted(answer.partitions) if answer else []

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        if not _holds_within(_REQUEST_TIMEOUT_S, holds):
            raise EmbeddedKafkaError(f"waited {_REQUEST_TIMEOUT_S:.0f} s for {what} on {self._servers}")


def _holds_within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Return whether a condition of a broker holds within a time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)  # brokers do not announce such changes
    return True


class HangingTransaction(NamedTuple):
    """A transaction that is open in one partition although its coordinator no longer knows it.

    Attributes:
        start_offset: The transaction's first offset in the partition.
    """

    topic: str
    partition: int
    start_offset: int


def find_hanging(tool: Callable[..., str], nodes: Iterable[int]) -> list[HangingTransaction]:
    """Ask brokers for open transactions that their coordinators do not know.

    Args:
        tool: Runs a Kafka command line tool, given its name and arguments.

    Returns:
        One entry per partition, regardless of how many replicas report it.
    """
    hanging: dict[HangingTransaction, None] = {}
    for node in nodes:
        asked = ["--broker-id", str(node), "--max-transaction-timeout", "0"]
        for line in tool("kafka-transactions", "find-hanging", *asked).splitlines()[1:]:
            topic, partition, _, _, _, start, *_ = line.split()
            hanging[HangingTransaction(topic, int(partition), int(start))] = None
    return list(hanging)
