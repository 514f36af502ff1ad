"""Exactly once: a transaction per Spark partition and batch, which zombies cannot commit and replays do not repeat."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
from collections import Counter
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

import millstream as ms
from millstream.core.model.errors import (
    BrokerUnavailableError,
    DeliveryAbortedError,
    MillstreamError,
    OtherCheckpointError,
    ProductionError,
)
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import BatchId
from millstream.core.topology.internal import commits_topic
from millstream.drivers.kafka import overdue
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.marks import Mark, Marks
from millstream.drivers.kafka.transactions import KafkaTransactions
from millstream.testing import EmbeddedKafka

from .helpers import Apps, committed_records, eventually, lag, values_by_key
from .topologies import shout, word_count

pytestmark = pytest.mark.broker


class Deliveries:
    """Deliveries of one application, as the tasks of the sink make them."""

    def __init__(self, kafka: EmbeddedKafka, *, patience_s: float = 20, timeout_ms: int = 10_000) -> None:
        self.kafka = kafka
        self.id = f"deliveries-{secrets.token_hex(3)}"
        self.topic = f"{self.id}-out"
        kafka.create_topic(self.topic, 1)
        client = {"bootstrap.servers": kafka.bootstrap_servers}
        self.marks = Marks(client, self.id, 10)
        self.marks.prepare(2, -1)
        self.publisher = KafkaTransactions(client, client, self.id, patience_s, timeout_ms)
        self.claim("c")

    def claim(self, checkpoint: str, known: dict[int, Mark] | None = None) -> None:
        newest = BatchId(checkpoint, -1)
        self.publisher.claim(newest, self.marks.read_marks() if known is None else known, 2)

    def in_run(self, run: str) -> Deliveries:
        """Return the deliveries of another run of the application."""
        other = copy(self)
        other.publisher = replace(self.publisher, run=run)
        return other

    def deliver(self, number: int, *values: bytes, partition: int = 0, checkpoint: str = "c") -> bool:
        delivery = self.publisher.delivery(partition)
        begun = delivery.begin(BatchId(checkpoint, number, self.publisher.run))
        if begun:
            delivery.publish(self.topic, records_of(*values))
            delivery.commit({TopicPartition(self.topic, 0): number + 100})
        return begun

    def delivered(self) -> list[bytes | None]:
        return [record.value for record in committed_records(self.kafka, self.topic)]


def records_of(*values: bytes) -> Records:
    return Records([None] * len(values), list(values), [1] * len(values))


def forget_group(kafka: EmbeddedKafka, group: str) -> None:
    """Delete a group, as the broker does when it has not been used for a week."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_consumer_groups([group])[group].result(10)


@pytest.fixture
def deliveries(kafka: EmbeddedKafka) -> Deliveries:
    return Deliveries(kafka)


class TestADelivery:
    def test_commits_records_and_offsets(self, deliveries: Deliveries) -> None:
        assert deliveries.deliver(0, b"a", b"b")
        assert deliveries.delivered() == [b"a", b"b"]
        assert deliveries.kafka.committed(deliveries.id, deliveries.topic) == {0: 100}

    def test_that_was_committed_before_is_not_repeated(self, deliveries: Deliveries) -> None:
        assert [deliveries.deliver(n, b"%d" % n) for n in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
        assert deliveries.delivered() == [b"0", b"1", b"2"]

    def test_is_independent_of_other_partitions(self, deliveries: Deliveries) -> None:
        assert deliveries.deliver(5, b"a")
        assert deliveries.deliver(5, b"b", partition=1)
        assert deliveries.delivered() == [b"a", b"b"]

    def test_is_connected_before_it_takes_over_the_transactional_id(
        self, deliveries: Deliveries, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Otherwise, librdkafka waits 500 ms before it looks for the coordinator again."""
        deliveries.publisher = replace(
            deliveries.publisher, settings={**deliveries.publisher.settings, "debug": "eos"}
        )
        with caplog.at_level(logging.DEBUG, "millstream.librdkafka"):
            for number in range(10):
                deliveries.deliver(number, b"a")
        assert "Querying for transaction coordinator: Acquire PID" in caplog.text
        assert "Unable to query for transaction coordinator" not in caplog.text

    def test_that_is_aborted_writes_nothing(self, deliveries: Deliveries) -> None:
        delivery = deliveries.publisher.delivery(0)
        assert delivery.begin(BatchId("c", 0))
        delivery.publish(deliveries.topic, records_of(b"never"))
        delivery.abort()
        assert deliveries.deliver(0, b"once")
        assert deliveries.delivered() == [b"once"]

    def test_of_a_zombie_is_refused(self, deliveries: Deliveries) -> None:
        zombie = deliveries.publisher.delivery(0)
        assert zombie.begin(BatchId("c", 0))
        zombie.publish(deliveries.topic, records_of(b"zombie"))
        assert deliveries.deliver(0, b"good")
        with pytest.raises(DeliveryAbortedError, match="another attempt of the micro-batch has taken over"):
            zombie.commit({})
        assert not zombie.begin(BatchId("c", 0))
        zombie.abort()
        assert deliveries.delivered() == [b"good"]

    def test_of_a_record_the_broker_refuses_is_an_error(self, deliveries: Deliveries) -> None:
        delivery = deliveries.publisher.delivery(0)
        assert delivery.begin(BatchId("c", 0))
        with pytest.raises(ProductionError, match=r"max\.message\.bytes"):
            delivery.publish(deliveries.topic, records_of(b"fits", bytes(3_000_000)))
        delivery.abort()
        assert deliveries.deliver(0, b"good")
        assert deliveries.delivered() == [b"good"]

    def test_that_a_dead_run_has_left_open_is_ended_before_offsets_are_read(
        self, deliveries: Deliveries
    ) -> None:
        assert deliveries.deliver(0, b"a")
        dead = deliveries.publisher.delivery(1)
        assert dead.begin(BatchId("c", 1))
        dead.publish(deliveries.topic, records_of(b"never"))
        dead._send_offsets([ClientPartition(deliveries.topic, 0, 999)], deliveries.id)
        client = {"bootstrap.servers": deliveries.kafka.bootstrap_servers}
        broker = Broker(client, deliveries.id, read_committed=True, timeout_s=1)
        with pytest.raises(BrokerUnavailableError):
            broker.committed_offsets({deliveries.topic: 1})
        deliveries.publisher.end_open(2)
        assert broker.committed_offsets({deliveries.topic: 1}) == {deliveries.topic: {0: 100}}
        assert deliveries.delivered() == [b"a"]


class StuckClient:
    """A client with one method that hangs after its work, or before and after it."""

    def __init__(self, client: Any, name: str, *, before: bool) -> None:
        self._client = client
        self._name = name
        self._before = before
        self.released = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return self._hang if name == self._name else getattr(self._client, name)

    def _hang(self, *arguments: Any, **options: Any) -> None:
        if self._before:
            self.released.wait()
        getattr(self._client, self._name)(*arguments, **options)
        self.released.wait()


class TestATransactionThatIsLost:
    def test_because_it_was_open_for_too_long_is_sent_again(self, kafka: EmbeddedKafka) -> None:
        deliveries = Deliveries(kafka, timeout_ms=1_000)
        delivery = deliveries.publisher.delivery(0)
        assert delivery.begin(BatchId("c", 0))
        delivery.publish(deliveries.topic, records_of(b"too late"))
        delivery._producer.flush(10)
        eventually(
            lambda: kafka.end_offsets(deliveries.topic, isolation="read_committed")[0], "the broker to end it"
        )
        message = r"was open for \d+ s, and the broker ends one after 1 s \(setting transaction_timeout_ms\)"
        with pytest.raises(DeliveryAbortedError, match=message):
            delivery.commit({})
        assert delivery.begin(BatchId("c", 0))
        delivery.publish(deliveries.topic, records_of(b"once"))
        delivery.commit({})
        assert deliveries.delivered() == [b"once"]

    def test_with_unacknowledged_records_is_sent_again_without_duplicates(self) -> None:
        with EmbeddedKafka(partitions=1) as kafka:
            deliveries = Deliveries(kafka, timeout_ms=60_000)
            settings = {**deliveries.publisher.settings, "socket.timeout.ms": 1_000}
            delivery = replace(deliveries.publisher, settings=settings).delivery(0)
            assert delivery.begin(BatchId("c", 0))
            delivery.publish(deliveries.topic, records_of(b"acknowledged"))
            assert delivery._producer.flush(10) == 0
            kafka.pause()
            delivery.publish(deliveries.topic, records_of(b"stored without an acknowledgement"))
            # The request times out, but the broker still processes it when it resumes.
            assert delivery._producer.flush(3) == 1
            threading.Timer(2, kafka.resume).start()
            delivery.abort()
            assert delivery.begin(BatchId("c", 0))
            delivery.publish(deliveries.topic, records_of(b"once"))
            delivery.commit({})
            assert deliveries.delivered() == [b"once"]

    @pytest.mark.parametrize(
        ("name", "before", "again"),
        [
            ("send_offsets_to_transaction", True, True),
            ("commit_transaction", True, True),
            ("commit_transaction", False, False),
        ],
    )
    def test_because_a_call_does_not_return_is_repeated_unless_it_is_committed(
        self, deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch, name: str, before: bool, again: bool
    ) -> None:
        delivery = deliveries.publisher.delivery(0)
        assert delivery.begin(BatchId("c", 0))
        delivery.publish(deliveries.topic, records_of(b"once"))
        stuck = delivery._producer = StuckClient(delivery._producer, name, before=before)
        with monkeypatch.context() as patched:
            patched.setattr(overdue, "_GRACE_S", 5 - overdue.STEP_S)
            with pytest.raises(DeliveryAbortedError, match="was abandoned: no answer for 5 s"):
                delivery.commit({})
        assert delivery.begin(BatchId("c", 0)) == again
        stuck.released.set()
        if again:
            delivery.publish(deliveries.topic, records_of(b"once"))
            delivery.commit({})
        assert deliveries.delivered() == [b"once"]


class TestAClaim:
    def test_fences_the_previous_checkpoint(self, deliveries: Deliveries) -> None:
        assert deliveries.deliver(7, b"a")
        delivery = deliveries.publisher.delivery(0)
        assert delivery.begin(BatchId("c", 8))
        delivery.publish(deliveries.topic, records_of(b"too late"))
        deliveries.claim("another")
        with pytest.raises(ProductionError):
            delivery.commit({})
        for partition in (0, 1):
            with pytest.raises(
                OtherCheckpointError, match=r"no longer send from checkpoint c: .* \(another\)"
            ):
                deliveries.deliver(8, b"too late", partition=partition)
            assert deliveries.deliver(0, b"b%d" % partition, partition=partition, checkpoint="another")
        assert deliveries.delivered() == [b"a", b"b0", b"b1"]

    def test_succeeds_for_only_one_of_two_starts(self, deliveries: Deliveries) -> None:
        known = deliveries.marks.read_marks()
        assert known == {0: Mark("c", -1), 1: Mark("c", -1)}
        deliveries.claim("one", known)
        with pytest.raises(OtherCheckpointError, match="that instance started first"):
            deliveries.claim("two", known)
        assert set(deliveries.marks.read_marks().values()) == {Mark("one", -1)}

    def test_distinguishes_copies_of_a_checkpoint(self, deliveries: Deliveries) -> None:
        """Both have planned micro-batch 8, with different records, and neither may mistake the other's for its own."""
        first, second = deliveries.in_run("one"), deliveries.in_run("two")
        assert deliveries.deliver(7, b"a")
        known = deliveries.marks.read_marks()
        first.publisher.claim(BatchId("c", 7), known, 2)
        assert first.deliver(8, b"b")
        with pytest.raises(OtherCheckpointError, match="that instance started first"):
            second.publisher.claim(BatchId("c", 7), known, 2)
        with pytest.raises(OtherCheckpointError, match="that instance started first"):
            second.publisher.claim(BatchId("c", 7), deliveries.marks.read_marks(), 2)
        second.publisher.claim(BatchId("c", 8, "one"), deliveries.marks.read_marks(), 2)
        for partition in (0, 1):
            with pytest.raises(OtherCheckpointError, match="a later start on that checkpoint, or on a copy"):
                first.deliver(9, b"lost", partition=partition)
        assert not second.deliver(8, b"b")
        assert second.deliver(9, b"c")
        assert deliveries.delivered() == [b"a", b"b", b"c"]

    def test_succeeds_while_the_previous_checkpoint_delivers(self, deliveries: Deliveries) -> None:
        started, errors = threading.Event(), []

        def deliver() -> None:
            try:
                for number in range(10_000):
                    deliveries.deliver(number, b"%d" % number)
                    started.set()
            except MillstreamError as error:
                errors.append(error)

        thread = threading.Thread(target=deliver)
        thread.start()
        assert started.wait(30)
        deliveries.claim("another")
        before = deliveries.delivered()
        thread.join(30)
        assert isinstance(errors[0], ProductionError | OtherCheckpointError)
        assert deliveries.delivered() == before == [b"%d" % number for number in range(len(before))]

    def test_is_lost_with_its_topic(self, deliveries: Deliveries) -> None:
        deliveries.kafka.delete_topic(commits_topic(deliveries.id))

        def attempt() -> bool:
            """Deliver; the broker deletes the offsets of a group a moment after their topic."""
            with suppress(DeliveryAbortedError):
                deliveries.deliver(0, b"a")
            return False

        with pytest.raises(OtherCheckpointError, match=r"was deleted, as `millstream reset` does"):
            eventually(attempt, "the group to forget the topic")


class TestAHangingTransaction:
    """A transaction that the coordinator does not know, because the test has deleted the coordinator's log."""

    def test_is_reported_and_can_be_aborted(self, tmp_path: Path) -> None:
        with EmbeddedKafka(partitions=1, directory=tmp_path) as kafka:
            deliveries = Deliveries(kafka, patience_s=1)
            assert deliveries.deliver(0, b"before")
            self.leave_open(deliveries)
            kafka.kill()
            for log in (tmp_path / "data").glob("__transaction_state-*"):
                shutil.rmtree(log)
            kafka.restart()
            with pytest.raises(
                BrokerUnavailableError, match=r"has a hanging transaction: it blocks .*-commits-0"
            ):
                deliveries.deliver(1, b"after")
            hanging = kafka.hanging_transactions()
            assert {found.topic for found in hanging} == {deliveries.topic, "__consumer_offsets"}
            for found in hanging:
                kafka.abort_transaction(found)
            assert deliveries.deliver(1, b"after")
            assert deliveries.delivered() == [b"before", b"after"]

    def leave_open(self, deliveries: Deliveries) -> None:
        """Begin a transaction, send a record and an offset in it, and do not end it."""
        servers = {"bootstrap.servers": deliveries.kafka.bootstrap_servers}
        producer = Producer({**servers, "transactional.id": f"{deliveries.id}-0", "log_level": 0})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(deliveries.topic, b"never")
        marks = commits_topic(deliveries.id)
        metadata = Consumer({**servers, "group.id": marks, "log_level": 0}).consumer_group_metadata()
        producer.send_offsets_to_transaction([ClientPartition(marks, 0, 2)], metadata, 10)
        producer.flush()


class TestMarks:
    def test_that_the_broker_has_forgotten_are_restored_at_the_start(self, deliveries: Deliveries) -> None:
        assert deliveries.deliver(7, b"a")
        forget_group(deliveries.kafka, commits_topic(deliveries.id))
        assert deliveries.marks.read_marks()[0] == Mark("c", 7)
        deliveries.marks.prepare(2, -1)
        assert not deliveries.deliver(7, b"a")
        assert deliveries.deliver(8, b"b")
        assert deliveries.delivered() == [b"a", b"b"]

    def test_that_the_broker_forgets_while_the_application_runs_are_restored(
        self, deliveries: Deliveries
    ) -> None:
        assert deliveries.deliver(7, b"a")
        forget_group(deliveries.kafka, commits_topic(deliveries.id))
        assert [deliveries.deliver(n, b"%d" % n) for n in (7, 8)] == [False, True]

    def test_can_be_extended_to_more_partitions(self, deliveries: Deliveries) -> None:
        deliveries.marks.prepare(5, -1)
        deliveries.publisher.claim(BatchId("c", -1), deliveries.marks.read_marks(), 5)
        assert deliveries.deliver(0, b"a", partition=4)
        deliveries.marks.prepare(3, -1)
        assert not deliveries.deliver(0, b"a", partition=4)


@pytest.mark.spark
class TestAnApplication:
    def test_counts_once_and_commits_in_the_transaction(self, apps: Apps) -> None:
        source, sink = apps.topic("lines", 3), apps.topic("counts", 2)
        lines = [f"a b{n % 7} c{n % 3}" for n in range(3_000)]
        apps.kafka.produce(source, [(None, line) for line in lines])
        apps.run(word_count(source, sink), processing_guarantee="exactly_once", max_batch_records=1_000)
        counts = values_by_key(committed_records(apps.kafka, sink), ms.serdes.int64)
        expected = Counter(word for line in lines for word in line.split())
        assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}
        assert lag(apps.kafka, apps.id, source) == 0

    @pytest.mark.parametrize(("guarantee", "sent"), [("exactly_once", 500), ("at_least_once", 1000)])
    def test_repeats_a_batch_whose_spark_commit_is_lost_only_at_least_once(
        self, apps: Apps, guarantee: str, sent: int
    ) -> None:
        source, sink = apps.topic("in", 2), apps.topic("out", 2)
        apps.kafka.produce(source, [(f"k{n}", f"v{n}") for n in range(500)])
        topology = shout(source, sink)
        apps.run(topology, processing_guarantee=guarantee)
        commits = apps.home / apps.id / "checkpoint" / "commits"
        last = max(
            (path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
        )
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)
        apps.run(topology, processing_guarantee=guarantee)
        assert len(committed_records(apps.kafka, sink)) == sent
