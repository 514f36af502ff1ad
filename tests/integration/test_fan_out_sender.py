"""Results that an application sends to a topic whose partition is split while they wait: each record once, each key in order."""

from __future__ import annotations

from collections import defaultdict

import pytest
from confluent_kafka import KafkaError

import millstream as ms
from millstream.core.fanout.ledger import member_entry
from millstream.core.model.errors import FanOutError
from millstream.core.model.partitioning import partition_of
from millstream.core.model.record import Records
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.fanout.control_log import ControlLog
from millstream.drivers.kafka.fanout.coordinator import Coordinator
from millstream.drivers.kafka.fanout.inherited_settings import own_config
from millstream.drivers.kafka.fanout.sender import FanOutSender
from millstream.drivers.kafka.produce import KafkaSender

from .helpers import split_into

pytestmark = pytest.mark.broker

KEYS = [None, *(b"key-%d" % number for number in range(20))]


def test_results_arrive_once_with_their_timestamp_headers_and_partition(
    kafka: ms.testing.EmbeddedKafka,
) -> None:
    topic = "fan-out-sender"
    kafka.create_topic(topic, partitions=2)
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    coordinator = Coordinator(settings, topic)
    sender = FanOutSender(KafkaSender(settings), frozenset([topic]))

    for batch, ranges in enumerate((1, 3, 2)):
        split_into(coordinator, ranges)
        values = [b"%d" % batch] * len(KEYS)
        headers = [(("batch", b"%d" % batch),)] * len(KEYS)
        # Partition 1 for one key, and the partition of the key for the others.
        partitions = [1 if key == KEYS[-1] else -1 for key in KEYS]
        sender.publish(
            topic, Records(list(KEYS), values, [batch] * len(KEYS), headers=headers, partitions=partitions)
        )
    sender.flush()
    coordinator.close()
    found = defaultdict(list)
    for log in (topic, f"{topic}-fanout-0"):
        for record in kafka.consume(log, isolation="read_committed"):
            found[record.key].append((int(record.value or b""), record.timestamp, dict(record.headers)))
            if log == topic and record.key != KEYS[-1]:
                assert partition_of(record.key or b"", 2) == record.partition
    expected = [(batch, batch or 1, {"batch": b"%d" % batch}) for batch in range(3)]
    assert {key: sorted(of_key) for key, of_key in found.items()} == dict.fromkeys(KEYS, expected)


def test_a_fan_out_topic_inherits_the_configuration_of_its_topic(kafka: ms.testing.EmbeddedKafka) -> None:
    topic = "fan-out-configured"
    kafka.create_topic(topic, partitions=1, config={"retention.ms": 7_000_000, "max.message.bytes": 20_000})
    coordinator = Coordinator({"bootstrap.servers": kafka.bootstrap_servers}, topic)
    coordinator.change(0, 2)
    coordinator.close()
    broker = Broker({"bootstrap.servers": kafka.bootstrap_servers}, "test")
    assert own_config(broker, f"{topic}-fanout-0") == {
        "retention.ms": "7000000",
        "max.message.bytes": "20000",
    }
    assert own_config(broker, f"{topic}-fanout") == {"cleanup.policy": "compact"}


def test_only_the_record_that_is_too_large_for_the_topic_is_not_delivered(
    kafka: ms.testing.EmbeddedKafka,
) -> None:
    """librdkafka reports the error for all records of a request, and the broker also refuses a request that is too large as a whole."""
    topic = "fan-out-too-large"
    kafka.create_topic(topic, partitions=1, config={"max.message.bytes": 20_000})
    values = [b"%d" % n + b" " * (50_000 if n == 30 else 900) for n in range(60)]
    errors: dict[bytes, int | None] = {}
    with ms.KeyRangeProducer({"bootstrap.servers": kafka.bootstrap_servers}, topic) as producer:
        for value in values:
            producer.produce(
                topic,
                value,
                on_delivery=lambda error, message: errors.update(
                    {message.value(): None if error is None else error.code()}
                ),
            )
        assert producer.flush(120) == 0
    assert {value: error for value, error in errors.items() if error is not None} == {
        values[30]: KafkaError.MSG_SIZE_TOO_LARGE
    }
    written = [record.value for record in kafka.consume(topic, isolation="read_committed")]
    assert written == [*values[:30], *values[31:]]


def test_a_change_deletes_the_sessions_of_producers_that_have_ended(
    kafka: ms.testing.EmbeddedKafka,
) -> None:
    topic = "fan-out-ended"
    kafka.create_topic(topic, partitions=1)
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    control = ControlLog(settings, topic, 30.0)
    for number in range(40):
        control.publish(*member_entry(f"ended-{number}", {}))
    control.close()
    coordinator = Coordinator(settings, topic)
    split_into(coordinator, 2)
    assert coordinator.members() == set()
    with ms.KeyRangeProducer(settings, topic) as producer:
        producer.produce(topic, b"v", b"k")
        coordinator.states()
        assert len(coordinator.members()) == 1
    coordinator.states()
    assert coordinator.members() == set()
    coordinator.close()


def test_a_record_for_a_partition_that_does_not_exist_is_refused(kafka: ms.testing.EmbeddedKafka) -> None:
    topic = "fan-out-sender-refuses"
    kafka.create_topic(topic, partitions=2)
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    sender = FanOutSender(KafkaSender(settings), frozenset([topic]))
    with pytest.raises(FanOutError, match="a record for partition 2 of topic"):
        sender.publish(topic, Records([b"a"], [b"b"], [1], partitions=[2]))
