"""Input and output of the crash harness: a workload that arrives exactly once, and progress according to the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import millstream as ms
from millstream.drivers.kafka.fanout.coordinator import Coordinator
from millstream.testing import EmbeddedKafka
from millstream.testing.crash.broker_topics import TRANSACTIONS, commits_of, transaction_lines, went_back
from millstream.testing.crash.journal import journals_of
from millstream.testing.crash.split_topic import logs_of
from millstream.testing.crash.stream import Feeder, Watch, lacks_coordinator, number_of

from .helpers import eventually, split_into

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def killed_kafka() -> Iterator[EmbeddedKafka]:
    """A broker that the tests may kill."""
    with EmbeddedKafka(partitions=2) as kafka:
        for topic in ("fed", "watched", "results"):
            kafka.create_topic(topic)
        yield kafka


def test_the_workload_arrives_exactly_once_although_the_broker_is_killed(killed_kafka: EmbeddedKafka) -> None:
    workload = [(None if number % 3 else f"key-{number}", f"{number}") for number in range(3_000)]
    feeder = Feeder(killed_kafka.bootstrap_servers, "fed", workload, partitions=2)
    for up_to in (1_000, 2_000, 5_000):
        feeder.feed(up_to)
        feeder.wait(0.02)
        killed_kafka.kill()
        killed_kafka.restart()

    def arrived() -> bool:
        feeder.wait(0.02)
        return sum(killed_kafka.end_offsets("fed").values()) >= len(workload)

    eventually(arrived, "the workload")
    values = [record.value for record in killed_kafka.consume("fed")]
    numbers = [int(record.headers[0][1] or b"") for record in killed_kafka.consume("fed")]
    assert sorted(numbers) == [*range(len(workload))]
    assert sorted(values) == sorted(value.encode() for _, value in workload)


def test_progress_is_what_the_group_has_committed(killed_kafka: EmbeddedKafka) -> None:
    killed_kafka.produce("watched", [(None, "x")] * 10, partition=0)
    watch = Watch(killed_kafka, "some-group", "watched", "results")
    settings = {"bootstrap.servers": killed_kafka.bootstrap_servers, "group.id": "some-group"}
    consumer = Consumer(settings)

    def commit(offset: int) -> None:
        consumer.commit(offsets=[TopicPartition("watched", 0, offset)], asynchronous=False)

    watch.look()
    assert watch.processed == 0
    commit(4)
    eventually(watch.look, "progress")
    assert (watch.processed, watch.written) == (4, 0)
    assert not watch.look()
    commit(3)
    commit(5)
    assert [position.offset for position in commits_of(killed_kafka, "some-group", "watched")] == [4, 3, 5]
    assert went_back(commits_of(killed_kafka, "some-group", "watched")) == 1
    consumer.close()
    watch.close()


def test_records_of_a_split_topic_are_counted_in_all_logs(killed_kafka: EmbeddedKafka) -> None:
    servers, topic = killed_kafka.bootstrap_servers, "split"
    killed_kafka.create_topic(topic)
    workload = [(f"key-{number % 7}", f"{number}") for number in range(100)]
    feeder = Feeder(servers, topic, workload, partitions=2, splits=True)
    watch = Watch(killed_kafka, "split-group", topic, "results", splits=True)
    coordinator = Coordinator({"bootstrap.servers": servers}, topic)

    feeder.feed(50)
    feeder.flush()
    split_into(coordinator, 3)
    feeder.feed(100)
    feeder.flush()
    logs = logs_of(servers, topic)
    assert logs == [topic, f"{topic}-fanout-0"]
    records = [record for log in logs for record in killed_kafka.consume(log, isolation="read_committed")]
    assert sorted(map(number_of, records)) == [*range(100)]
    ends = [
        TopicPartition(log, partition, end)
        for log in logs
        for partition, end in killed_kafka.end_offsets(log).items()
    ]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "split-group"})
    consumer.commit(offsets=ends, asynchronous=False)

    def counted() -> bool:
        watch.look()
        return watch.processed == 100

    eventually(counted, "all records, without the markers of transactions")
    for resource in (consumer, watch, coordinator, feeder):
        resource.close()


def test_an_open_transaction_is_detected_and_an_aborted_one_is_not_read(killed_kafka: EmbeddedKafka) -> None:
    watch = Watch(killed_kafka, "another-group", "watched", "results")
    producer = Producer(
        {"bootstrap.servers": killed_kafka.bootstrap_servers, "transactional.id": "t", "log_level": 0}
    )
    producer.init_transactions(30)
    for value, end in (("1", producer.commit_transaction), ("2", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("results", value, "a", partition=0)
        producer.flush()
        assert watch.transaction_is_open()
        end(30)
        eventually(lambda: not watch.transaction_is_open(), "the end of the transaction")
    watch.close()

    def lines() -> list[str]:
        found = transaction_lines(killed_kafka.consume(TRANSACTIONS), last=9)
        return [state for _, name, state in (line.split(" ", 2) for line in found) if name == "t:"]

    # The coordinator writes its own last state after the marker that ends the transaction in the partition.
    eventually(
        lambda: any(line.startswith("aborted") for line in lines()), "the state of the aborted transaction"
    )
    logged = lines()
    states = [line.split(",")[0] for line in logged]
    assert states.index("ongoing") < states.index("committed") < states.index("aborted")
    assert "results-0" in logged[states.index("ongoing")]
    assert len(killed_kafka.consume("results")) == 2
    committed = killed_kafka.consume("results", isolation="read_committed")
    assert journals_of(committed, ms.serdes.string, ms.serdes.string) == {"a": ["1"]}


@pytest.mark.soak
def test_a_broker_that_has_not_loaded_the_offsets_of_a_group_is_detected() -> None:
    with EmbeddedKafka(partitions=1) as kafka:
        kafka.create_topic("in")
        servers = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        consumer = Consumer({**servers, "group.id": "group"})
        consumer.commit(offsets=[TopicPartition("in", 0, 4)], asynchronous=False)
        producer = Producer({**servers, "transactional.id": "t"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition("in", 0, 5)], consumer.consumer_group_metadata(), 30
        )
        assert not lacks_coordinator(kafka, "group", "in")  # an open transaction is no fault of the broker
        producer.abort_transaction(30)
        consumer.close()
        spoil_offsets(kafka)
        kafka.restart()
        assert lacks_coordinator(kafka, "group", "in")
        kafka.kill()
        assert not lacks_coordinator(kafka, "group", "in")


def spoil_offsets(kafka: EmbeddedKafka) -> None:
    """Write a record that no broker can load to the topic of all groups' offsets."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "__admin_client"})
    for partition in kafka.end_offsets("__consumer_offsets"):
        producer.produce("__consumer_offsets", b"\x00", b"\x00\x01\x00\xff", partition)
    assert producer.flush(30) == 0
