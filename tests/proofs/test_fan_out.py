"""Proof 6: a partition is split and merged under load from three producers. One producer is killed, one is suspended during a change,
and a coordinator is killed. No record is lost, duplicated or out of order within its key, and no restriction lasts a second.

``MILLSTREAM_TEST_FAN_OUT_RATE`` sets the records per second of each producer, and
``MILLSTREAM_TEST_FAN_OUT_PAUSE_S`` the time between changes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from time import sleep

import pytest

from millstream.core.fanout.epochs import History
from millstream.core.fanout.ledger import HOLDING, member_key
from millstream.core.model.errors import FanOutError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import ClientSettings
from millstream.drivers.kafka.fanout import restrictions
from millstream.drivers.kafka.fanout.control_log import ControlLog
from millstream.drivers.kafka.fanout.coordinator import Coordinator, cancel, take_over, write
from millstream.drivers.kafka.fanout.key_range_producer import KeyRangeProducer
from millstream.drivers.kafka.fanout.outgoing_records import Outgoing
from millstream.drivers.kafka.fanout.producer_sessions import ProducerSession
from millstream.testing import EmbeddedKafka

from .sizes import sized

pytestmark = pytest.mark.broker

RATE = int(os.environ.get("MILLSTREAM_TEST_FAN_OUT_RATE", "1000"))
PAUSE_S = float(os.environ.get("MILLSTREAM_TEST_FAN_OUT_PAUSE_S", "0.5"))
MAX_RESTRICTION_S = sized(2.0, 1.0)
"""The longest restriction that is allowed. With all tests, other programs may run on the machine; in `make soak`, none do."""
PROOFS = Path(__file__).parent
DYING_COORDINATOR = """
import os, signal, sys
from millstream.drivers.kafka.fanout.coordinator import Coordinator
class Dying(Coordinator):
    asked = 0
    def _ends(self, state, ranges):
        self.asked += 1
        if self.asked == 2:  # all producers hold back, and the change would be finished
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._ends(state, ranges)
Dying({"bootstrap.servers": sys.argv[1]}, sys.argv[2]).change(0, 8)
"""


class ProducerProcess:
    """A producer in its own process."""

    def __init__(self, servers: str, topic: str, name: str, directory: Path) -> None:
        self.name, self.delivered_path = name, directory / name
        arguments = [servers, topic, name, str(RATE), str(self.delivered_path)]
        program = [sys.executable, str(PROOFS / "fan_out_producer.py"), *arguments]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def delivered(self) -> set[int]:
        return {int(line) for line in self.delivered_path.read_text().split("\n")[:-1]}


@pytest.mark.alone  # it measures how long producers are held up
def test_a_partition_is_split_and_merged_under_load(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    topic, servers = f"fan-out-{os.getpid()}", kafka.bootstrap_servers
    kafka.create_topic(topic, partitions=1)
    producers = [ProducerProcess(servers, topic, name, tmp_path) for name in ("steady", "killed", "stopped")]
    steady, killed, stopped = producers
    coordinator = Coordinator({"bootstrap.servers": servers}, topic)
    try:
        assert [producer.line() for producer in producers] == ["ready"] * 3
        change(coordinator, 4)
        sleep(PAUSE_S)
        killed.signal(signal.SIGKILL)
        change(coordinator, 2)
        sleep(PAUSE_S)
        dying = subprocess.run([sys.executable, "-c", DYING_COORDINATOR, servers, topic], check=False)
        assert dying.returncode == -signal.SIGKILL
        wait_until_given_up(servers, topic)
        sleep(PAUSE_S)
        stopped.signal(signal.SIGSTOP)
        change(coordinator, 8)
        sleep(PAUSE_S)
        stopped.signal(signal.SIGCONT)
        sleep(PAUSE_S)
        change(coordinator, 1)
        sleep(PAUSE_S)
        for producer in (steady, stopped):
            producer.signal(signal.SIGTERM)
        ended = {producer.name: producer.line().split() for producer in (steady, stopped)}
    finally:
        for producer in producers:
            producer.signal(signal.SIGKILL)
            producer.process.wait()
    history = coordinator.states()[0].history
    coordinator.close()
    assert [epoch.ranges for epoch in history.epochs] == [1, 4, 2, 8, 1]
    found = in_order(kafka, history)
    restrictions = {name: float(words[1]) for name, words in ended.items()}
    counts = {name: len(numbers) for name, numbers in found.items()}
    sys.stdout.write(f"\nrecords: {counts}, longest restriction (s): {restrictions}\n")
    for name, (count, _) in ended.items():
        assert sorted(found[name]) == list(range(int(count))), f"{name}: lost or twice"
    assert len(set(found["killed"])) == len(found["killed"]), "twice"
    assert killed.delivered() <= set(found["killed"]), "lost after it was delivered"
    assert max(restrictions.values()) < MAX_RESTRICTION_S


def test_a_topic_that_does_not_exist_gets_no_control_topic(kafka: EmbeddedKafka) -> None:
    with pytest.raises(TopicNotFoundError, match="'nowhere' does not exist"):
        Coordinator({"bootstrap.servers": kafka.bootstrap_servers}, "nowhere")
    broker = Broker({"bootstrap.servers": kafka.bootstrap_servers}, "nobody")
    assert broker.partition_counts(["nowhere", "nowhere-fanout"]) == {}


def test_a_producer_that_is_fenced_while_it_cancels_a_change_continues(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens on a loaded machine: another coordinator has already fenced the producer that cancels a change."""
    topic, settings = f"fenced-{os.getpid()}", {"bootstrap.servers": kafka.bootstrap_servers}
    kafka.create_topic(topic, partitions=1)
    fenced: list[str] = []

    def cancel_too_late(settings: ClientSettings, control: ControlLog, partition: int, number: int) -> None:
        fenced.extend(control.ledger.members)
        for session in fenced:
            control.publish(member_key(session), None)
        cancel(settings, control, partition, number)

    monkeypatch.setattr(restrictions, "cancel", cancel_too_late)
    with KeyRangeProducer(settings, topic) as producer:
        control = ControlLog(settings, topic, 30)
        held_state = control.ledger.state(0).announced(2).holding()
        write(take_over(settings, control), control, held_state)  # this coordinator never finishes the change
        control.barrier()
        control.expect(lambda: control.ledger.state(0).pending is None, "the change to be cancelled")
        producer.produce(topic, b"value", b"key")
        assert producer.flush(30) == 0
    assert len(fenced) == 1
    assert [record.value for record in kafka.consume(topic, isolation="read_committed")] == [b"value"]
    control.close()


def test_records_stored_without_an_acknowledgement_are_sent_again_without_duplicates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[bytes | None] = []
    with EmbeddedKafka(partitions=1) as kafka:
        kafka.create_topic("topic")
        original = ProducerSession._produce

        def produce(session: ProducerSession, log: TopicPartition, record: Outgoing) -> None:
            original(session, log, record)
            sent.append(record.value)
            if len(sent) == 1:
                assert session._producer.flush(30) == 0
                kafka.pause()
                threading.Timer(8, kafka.resume).start()

        monkeypatch.setattr(ProducerSession, "_produce", produce)
        # The request with the second record times out, and the broker still reads it after it resumes.
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "socket.timeout.ms": 2_000}
        with KeyRangeProducer(settings, "topic", patience_s=5) as producer:
            producer.produce("topic", b"first", b"key")
            producer.produce("topic", b"second", b"key")
            assert producer.flush(60) == 0
        written = kafka.consume("topic", isolation="read_committed")
        assert [record.value for record in written] == [b"first", b"second"]
        assert len(kafka.consume("topic")) == len(sent) == 4


def change(coordinator: Coordinator, ranges: int) -> None:
    for _ in range(3):
        try:
            coordinator.change(0, ranges)
        except FanOutError:
            continue
        return
    raise AssertionError(f"the change to {ranges} ranges was given up three times")


def wait_until_given_up(servers: str, topic: str) -> None:
    log = ControlLog({"bootstrap.servers": servers}, topic, 10.0)
    log.barrier()
    log.expect(lambda: log.ledger.state(0).pending != HOLDING, "the end of the change")
    state = log.ledger.state(0)
    log.close()
    assert (state.pending, state.history.current.ranges) == (None, 2)


def in_order(kafka: EmbeddedKafka, history: History) -> dict[str, list[int]]:
    """Read all epochs as a reader of the whole partition; return the numbers of each producer. Fails if a key is out of order."""
    topics = {stretch.log.topic for epoch in history.epochs for stretch in epoch.stretches}
    records = {topic: kafka.consume(topic, isolation="read_committed") for topic in topics}
    numbers: dict[str, list[int]] = defaultdict(list)
    last: dict[tuple[str, bytes], tuple[int, int]] = {}
    record_count = 0
    for epoch in history.epochs:
        for stretch in epoch.stretches:
            for record in records[stretch.log.topic]:
                end_offset = float("inf") if stretch.end is None else stretch.end
                if (
                    record.partition != stretch.log.partition
                    or not stretch.start <= record.offset < end_offset
                ):
                    continue
                assert record.key is not None
                assert record.value is not None
                assert stretch.keys.holds(record.key)
                name, number = record.value.decode().split(":")
                current = (stretch.position(record.offset), int(number))
                before = last.get((name, record.key), (-1, -1))
                assert before[0] < current[0], "a position does not grow"
                assert before[1] < current[1], f"an inversion in {record.key!r} of {name}"
                last[name, record.key] = current
                numbers[name].append(int(number))
                record_count += 1
    assert record_count == sum(map(len, records.values())), "records outside of all epochs"
    return numbers
