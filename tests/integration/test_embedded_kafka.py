"""The embedded broker, checked from outside with Kafka's own tools and the process table."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.testing import _cluster
from millstream.testing.kafka import ConsumedRecord, EmbeddedKafka, EmbeddedKafkaError, Outgoing, resolve_jars

pytestmark = pytest.mark.broker

LONG_AGO = 1_000_000
FAR_AHEAD = 4_102_444_800_000  # the year 2100


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3, partitions=3) as kafka:
        yield kafka


@pytest.fixture
def topic(shared: EmbeddedKafka, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    shared.create_topic(name)
    return name


def await_true(holds: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (now := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pairs(records: list[ConsumedRecord]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


class TestRecords:
    def test_come_back_as_they_were_written(self, shared: EmbeddedKafka, topic: str) -> None:
        written: list[Outgoing] = [
            ("a", "ä", LONG_AGO),
            (None, b"\x00", FAR_AHEAD),
            (b"a", None, LONG_AGO + 1),
            ("", "", 1),
        ]
        shared.produce(topic, written, partition=2)

        assert shared.consume(topic) == [
            ConsumedRecord(topic, 2, 0, LONG_AGO, b"a", "ä".encode()),
            ConsumedRecord(topic, 2, 1, FAR_AHEAD, None, b"\x00"),
            ConsumedRecord(topic, 2, 2, LONG_AGO + 1, b"a", None),
            ConsumedRecord(topic, 2, 3, 1, b"", b""),
        ]
        assert shared.end_offsets(topic) == {0: 0, 1: 0, 2: 4, 3: 0}

    def test_without_timestamp_get_the_current_time(self, shared: EmbeddedKafka, topic: str) -> None:
        before = time.time_ns() // 1_000_000
        shared.produce(topic, [("k", "v")])
        [record] = shared.consume(topic)
        assert before <= record.timestamp <= time.time_ns() // 1_000_000

    def test_have_their_headers(self, shared: EmbeddedKafka, topic: str) -> None:
        producer = Producer({"bootstrap.servers": shared.bootstrap_servers})
        producer.produce(topic, "v", headers=[("one", b"1"), ("two", None), ("one", b"")])
        producer.flush()
        [record] = shared.consume(topic)
        assert record.headers == (("one", b"1"), ("two", None), ("one", b""))

    def test_of_an_empty_topic_are_an_empty_list(self, shared: EmbeddedKafka, topic: str) -> None:
        assert shared.consume(topic) == []

    def test_go_to_the_partition_that_java_chooses(self, shared: EmbeddedKafka, topic: str) -> None:
        keys = [f"key-{number}" for number in range(60)] + ["ä", "日本", "k" * 100]
        shared.create_topic("by-java", config={"retention.ms": 1_000_000_000})
        shared.produce(topic, [(key, "v") for key in keys])
        lines = "".join(f"{key}\tv\n" for key in keys)
        shared.tool(
            "kafka-console-producer", "--topic", "by-java", "--reader-property", "parse.key=true", stdin=lines
        )

        def partitions_of_keys(records: list[ConsumedRecord]) -> set[tuple[bytes | None, int]]:
            return {(record.key, record.partition) for record in records}

        assert partitions_of_keys(shared.consume(topic)) == partitions_of_keys(shared.consume("by-java"))
        assert {record.partition for record in shared.consume(topic)} == {0, 1, 2, 3}

    def test_that_were_deleted_are_not_returned(self, shared: EmbeddedKafka, topic: str) -> None:
        shared.produce(topic, [(None, str(number)) for number in range(5)], partition=1)
        shared.produce(topic, [(None, "other")], partition=3)
        shared.delete_records(topic, {1: 3})
        assert [record.offset for record in shared.consume(topic)] == [3, 4, 0]
        assert shared.end_offsets(topic)[1] == 5
        shared.delete_records(topic, {1: 5, 3: 1})
        assert shared.consume(topic) == []
        with pytest.raises(EmbeddedKafkaError, match="delete records"):
            shared.delete_records(topic, {1: 99})

    def test_of_transactions_obey_the_isolation_level(self, shared: EmbeddedKafka, topic: str) -> None:
        settings = {"bootstrap.servers": shared.bootstrap_servers, "transactional.id": topic, "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions(30)
        for value, end in [
            ("committed", producer.commit_transaction),
            ("aborted", producer.abort_transaction),
            ("open", producer.flush),
        ]:
            producer.begin_transaction()
            producer.produce(topic, value, partition=0)
            producer.flush()
            end(30)

        everything = [(None, b"committed"), (None, b"aborted"), (None, b"open")]
        assert pairs(shared.consume(topic)) == everything
        assert pairs(shared.consume(topic, isolation="read_committed")) == everything[:1]
        assert shared.end_offsets(topic)[0] == 5
        assert shared.end_offsets(topic, isolation="read_committed")[0] == 4
        producer.abort_transaction(30)
        three_records_and_markers = 6  # the broker answers before it writes the marker
        assert await_true(lambda: shared.end_offsets(topic)[0] == three_records_and_markers, seconds=10)
        assert pairs(shared.consume(topic, isolation="read_committed")) == everything[:1]
        assert pairs(shared.consume(topic)) == everything

    def test_of_a_transaction_that_ends_during_the_call_are_read(
        self, shared: EmbeddedKafka, topic: str
    ) -> None:
        """This happens after a commit too, which the broker answers before it writes the marker."""
        settings = {"bootstrap.servers": shared.bootstrap_servers, "transactional.id": topic, "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, "value", partition=0)
        producer.flush()
        ending = threading.Timer(0.5, producer.commit_transaction, [30])
        ending.start()
        assert pairs(shared.consume(topic, isolation="read_committed")) == [(None, b"value")]
        ending.join()

    def test_with_a_timestamp_that_librdkafka_would_replace_are_refused(
        self, shared: EmbeddedKafka, topic: str
    ) -> None:
        for timestamp in (0, -1):
            with pytest.raises(ValueError, match="must be positive"):
                shared.produce(topic, [("k", "v", timestamp)])

    def test_that_the_broker_refuses_are_reported(self, shared: EmbeddedKafka) -> None:
        shared.create_topic("tiny", 1, {"max.message.bytes": 100})
        with pytest.raises(EmbeddedKafkaError, match=r"\d records were not written to topic tiny"):
            shared.produce("tiny", [("k", "v"), ("k", os.urandom(200))])
        with pytest.raises(EmbeddedKafkaError, match="refused"):
            shared.produce("tiny", [("k", bytes(2_000_000))])

    def test_of_an_unknown_topic_are_an_error(self, shared: EmbeddedKafka) -> None:
        with pytest.raises(EmbeddedKafkaError, match="there is no topic 'nowhere'"):
            shared.consume("nowhere")
        with pytest.raises(EmbeddedKafkaError, match="there is no topic 'nowhere'"):
            shared.produce("nowhere", [("k", "v")])


class TestTopics:
    def test_never_expire_unless_configured(self, shared: EmbeddedKafka, topic: str) -> None:
        described = shared.tool("kafka-topics", "--describe", "--topic", topic)
        assert "PartitionCount: 4" in described
        assert "retention.ms=-1" in described

    def test_can_be_deleted_and_created_again(self, shared: EmbeddedKafka) -> None:
        shared.create_topic("again", 1)
        shared.produce("again", [("k", "old")])
        shared.delete_topic("again")
        with pytest.raises(EmbeddedKafkaError, match="delete topic again"):
            shared.delete_topic("again")
        shared.create_topic("again", 2)
        assert shared.end_offsets("again") == {0: 0, 1: 0}
        with pytest.raises(EmbeddedKafkaError, match="create topic again"):
            shared.create_topic("again")


class TestTools:
    def test_see_the_committed_offsets_of_a_group(self, shared: EmbeddedKafka, topic: str) -> None:
        shared.produce(topic, [("k", "v")] * 3, partition=0)
        consumer = Consumer({"bootstrap.servers": shared.bootstrap_servers, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        consumer.close()

        assert shared.committed("readers", topic) == {0: 2}
        assert shared.committed("readers", "other") == {}
        assert shared.committed("nobody", topic) == {}
        described = shared.tool("kafka-consumer-groups", "--describe", "--group", "readers")
        [row] = [line.split() for line in described.splitlines() if topic in line]
        assert row[:6] == ["readers", topic, "0", "2", "3", "1"]

    def test_read_and_delete_records(self, shared: EmbeddedKafka, topic: str, tmp_path: Path) -> None:
        shared.produce(topic, [("k", "one"), ("k", "two")], partition=0)
        arguments = ["--topic", topic, "--from-beginning", "--max-messages", "2"]
        consumed = shared.tool(
            "kafka-console-consumer", *arguments, "--formatter-property", "print.partition=true"
        )
        assert consumed.splitlines() == ["Partition:0\tone", "Partition:0\ttwo"]
        plan = tmp_path / "plan.json"
        plan.write_text(f'{{"partitions": [{{"topic": "{topic}", "partition": 0, "offset": 1}}]}}')
        shared.tool("kafka-delete-records", "--offset-json-file", str(plan))
        earliest = shared.tool("kafka-get-offsets", "--topic", topic, "--time", "earliest")
        assert f"{topic}:0:1" in earliest.splitlines()

    def test_that_fail_report_the_reason(self, shared: EmbeddedKafka) -> None:
        with pytest.raises(EmbeddedKafkaError, match=r"UnknownTopicOrPartition|does not exist"):
            shared.tool("kafka-topics", "--describe", "--topic", "nowhere")
        with pytest.raises(EmbeddedKafkaError, match=r"the tools are .*kafka-topics"):
            shared.tool("kafka-nonsense")


class TestABroker:
    def test_keeps_its_data_after_a_kill_a_restart_and_a_new_start_in_its_directory(
        self, tmp_path: Path
    ) -> None:
        quick = {"broker.session.timeout.ms": 1_000, "broker.heartbeat.interval.ms": 250}
        with EmbeddedKafka(directory=tmp_path, properties=quick) as kafka:
            servers, first = kafka.bootstrap_servers, kafka.pid
            kafka.create_topic("kept", 8)
            kafka.produce("kept", [("k", "before")], partition=7)
            kafka.kill()
            assert not psutil.pid_exists(first)
            with pytest.raises(EmbeddedKafkaError, match="is not running"):
                _ = kafka.pid
            kafka.restart()
            assert pairs(kafka.consume("kept")) == [(b"k", b"before")]
            assert (kafka.bootstrap_servers, kafka.pid != first) == (servers, True)
            kafka.produce("kept", [("k", "after")], partition=7)
        with EmbeddedKafka(directory=tmp_path) as kafka:
            assert pairs(kafka.consume("kept")) == [(b"k", b"before"), (b"k", b"after")]

    def test_leaves_no_process_and_no_file_and_can_be_paused(self) -> None:
        def children() -> set[int]:
            return {child.pid for child in psutil.Process().children(recursive=True)}

        before = children()
        kafka = EmbeddedKafka(partitions=2, auto_create_topics=True, properties={"compression.type": "lz4"})
        with pytest.raises(EmbeddedKafkaError, match="not started"):
            _ = kafka.bootstrap_servers
        with kafka:
            started = psutil.Process(kafka.pid)
            home = Path(started.cwd())
            with pytest.raises(EmbeddedKafkaError, match="already started"):
                kafka.start()
            kafka.pause()
            threads = [psutil.Process(thread.id) for thread in started.threads()]
            assert {thread.status() for thread in threads} == {psutil.STATUS_STOPPED}
            kafka.resume()
            kafka.produce("made-by-asking", [("k", "v")])
            assert set(kafka.end_offsets("made-by-asking")) == {0, 1}
            kafka.pause()
        assert children() <= before, "others that the tests share may end meanwhile"
        assert not home.exists()
        kafka.stop()

    def test_ends_when_its_parent_is_killed(self, tmp_path: Path) -> None:
        program = (
            "import sys, time; from millstream.testing.kafka import EmbeddedKafka\n"
            "kafka = EmbeddedKafka(directory=sys.argv[1]).start()\n"
            "print(kafka.pid, flush=True); time.sleep(600)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
        ) as parent:
            assert parent.stdout is not None
            broker = psutil.Process(int(parent.stdout.readline()))
            family = psutil.Process(parent.pid).children(recursive=True)
            assert broker in family
            broker.send_signal(signal.SIGSTOP)
            parent.kill()
        assert await_true(lambda: all(has_ended(process) for process in family), seconds=5)

    def test_uses_other_ports_if_one_is_in_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            choices = [[port, *_cluster.free_ports(1)], _cluster.free_ports(2)]
            monkeypatch.setattr(_cluster, "free_ports", lambda _: choices.pop(0))
            with EmbeddedKafka() as kafka:
                assert kafka.bootstrap_servers != f"127.0.0.1:{port}"
                kafka.create_topic("works", 1)

    def test_shows_the_log_when_it_does_not_start(self) -> None:
        with pytest.raises(EmbeddedKafkaError, match=r"(?s)ended with code 1 .*Too small maximum heap"):
            EmbeddedKafka(heap="1k").start()


class TestACluster:
    def test_keeps_three_replicas_of_which_two_must_acknowledge(self, cluster: EmbeddedKafka) -> None:
        cluster.create_topic("kept-thrice")
        assert len(cluster.bootstrap_servers.split(",")) == 3
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "first"})
        producer.init_transactions(30)
        for topic in ("kept-thrice", "__transaction_state"):
            described = cluster.tool("kafka-topics", "--describe", "--topic", topic)
            assert "ReplicationFactor: 3" in described
            assert "min.insync.replicas=2" in described

    @pytest.mark.soak
    def test_continues_with_one_dead_broker_and_stops_with_two(self, cluster: EmbeddedKafka) -> None:
        cluster.create_topic("kept")
        for number in range(3):
            cluster.kill(number)
            cluster.produce("kept", [(f"key-{key}", f"{number}") for key in range(20)])
            assert len(cluster.consume("kept")) == (number + 1) * 20
            cluster.restart(number)
        first = cluster.pid
        cluster.kill(1)
        cluster.kill(2)
        assert cluster.pid == first
        settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 0,
            "enable.idempotence": True,
        }
        producer = Producer(
            settings
        )  # idempotent, so records that it sends again while brokers restart are stored once
        producer.produce("kept", "lost?", partition=0)
        assert producer.flush(2) == 1
        cluster.kill(0)  # alone, it cannot shut down cleanly, and the restart would wait for it
        cluster.restart()
        assert producer.flush(60) == 0
        assert len(cluster.consume("kept")) == 61
        assert cluster.hanging_transactions() == []

    def test_answers_for_a_new_topic_whichever_broker_is_asked(self, cluster: EmbeddedKafka) -> None:
        for number in range(10):
            cluster.create_topic(f"new-{number}")
            assert cluster.end_offsets(f"new-{number}") == {0: 0, 1: 0, 2: 0}

    def test_refuses_to_kill_a_broker_that_it_does_not_have(self, cluster: EmbeddedKafka) -> None:
        with pytest.raises(EmbeddedKafkaError, match="no broker 3; the cluster has 3, numbered from 0"):
            cluster.kill(3)


@pytest.mark.parametrize(
    "ending", ["pass", "os._exit(0)", "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 9)"]
)
def test_a_tied_process_ends_with_its_parent(ending: str) -> None:
    program = (
        "import os; from pathlib import Path; from millstream.testing._java import TiedProcess\n"
        "child = TiedProcess(['sleep', '600'], log=Path(os.devnull), directory=Path('/'))\n"
        "if os.fork() == 0: del child; os._exit(0)\nos.wait()\n"
        "assert child.exit_code() is None\n"
        f"print(child.pid, flush=True); input(); {ending}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        child = psutil.Process(int(parent.stdout.readline()))
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == 2  # the child and its watchdog
        assert child in family
        parent.stdin.write("go\n")
    assert await_true(lambda: all(has_ended(process) for process in family), seconds=5)


class TestRequirements:
    @pytest.fixture(autouse=True)
    def apart(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.delenv("MILLSTREAM_KAFKA_JARS", raising=False)

    def test_a_missing_java_is_reported(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(EmbeddedKafkaError, match=r"no Java found .*Install Java 17 .*JAVA_HOME"):
            EmbeddedKafka().start()
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(EmbeddedKafkaError, match=rf"no Java found \(JAVA_HOME is {tmp_path}\)"):
            EmbeddedKafka().start()

    def test_an_old_java_is_reported(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        for version, shown in [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11")]:
            java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
            java.chmod(java.stat().st_mode | stat.S_IXUSR)
            with pytest.raises(EmbeddedKafkaError, match=f"is {shown}, too old"):
                EmbeddedKafka().start()

    def test_jars_of_the_user_must_contain_a_broker(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MILLSTREAM_KAFKA_JARS", str(tmp_path))
        with pytest.raises(EmbeddedKafkaError, match=r"no kafka_2.13-\*.jar is there"):
            EmbeddedKafka().start()

    def test_jars_of_the_user_are_used(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "kafka_2.13-9.9.jar").touch()
        monkeypatch.setenv("MILLSTREAM_KAFKA_JARS", str(tmp_path))
        with pytest.raises(EmbeddedKafkaError, match="Could not find or load main class"):
            EmbeddedKafka().start()
        assert not (tmp_path / "cache").exists()


class TestResolution:
    """Uses a repository in a directory, so that no test depends on the network."""

    @pytest.fixture(autouse=True)
    def repository(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        repository = tmp_path / "repository"
        repository.mkdir()
        settings = tmp_path / "ivysettings.xml"
        settings.write_text(
            f'<ivysettings><settings defaultResolver="here"/><caches defaultCacheDir="{tmp_path}/ivy"/><resolvers>'
            f'<filesystem name="here"><artifact pattern="{repository}/[artifact]-[revision].[ext]"/></filesystem>'
            "</resolvers></ivysettings>"
        )
        monkeypatch.setenv("MILLSTREAM_IVY_SETTINGS", str(settings))
        monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "cache"))
        return repository

    def test_of_an_unknown_module_fails_with_advice(self, tmp_path: Path) -> None:
        with pytest.raises(EmbeddedKafkaError) as caught:
            resolve_jars("org.example:missing:1.0", folder="missing")
        message = str(caught.value)
        log = tmp_path / "cache" / "missing.ivy.log"
        assert "org.example:missing:1.0" in message
        assert str(log) in message
        assert "MILLSTREAM_IVY_SETTINGS" in message
        assert "MILLSTREAM_KAFKA_JARS" in message
        assert "org.example#missing;1.0: not found" in message
        assert "UNRESOLVED" in log.read_text()
        assert not (tmp_path / "cache" / "missing").exists()

    def test_needs_complete_coordinates(self) -> None:
        with pytest.raises(EmbeddedKafkaError, match="write organisation:name:version"):
            resolve_jars("kafka-streams", folder="wrong")

    def test_follows_a_change_of_the_modules(self, repository: Path) -> None:
        for name in ("one-1.jar", "two-1.jar"):
            (repository / name).write_bytes(b"")
        first = resolve_jars("org.example:one:1", folder="tools")
        assert [jar.name for jar in first.glob("*.jar")] == ["one-1.jar"]
        second = resolve_jars("org.example:one:1", "org.example:two:1", folder="tools")
        assert sorted(jar.name for jar in second.glob("*.jar")) == ["one-1.jar", "two-1.jar"]

    def test_happens_once_for_processes_that_start_together(self, repository: Path, tmp_path: Path) -> None:
        (repository / "one-1.jar").write_bytes(b"content")
        program = (
            "from millstream.testing.kafka import resolve_jars\n"
            "found = resolve_jars('org.example:one:1', folder='together')\n"
            "print(found.stat().st_ino, (found / 'one-1.jar').read_text(), flush=True)"
        )
        together = [
            subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(3)
        ]
        answers = {process.communicate(timeout=60)[0] for process in together}
        inode = (tmp_path / "cache" / "together").stat().st_ino
        assert answers == {f"{inode} content\n".encode()}

    def test_reports_a_cache_that_cannot_be_written(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "file"))
        with pytest.raises(EmbeddedKafkaError, match="Set MILLSTREAM_CACHE_DIR"):
            resolve_jars("org.example:one:1", folder="nowhere")
