"""A broker process of Apache Kafka: its ports, storage, start and end.

Every broker is also a KRaft controller; the controllers of a cluster know each other from a fixed list of voters. The *home* directory of a
broker contains ``server.properties``, ``broker.log``, the data and a directory for temporary files. A broker has *started* when it answers
a metadata request with the cluster id in its own storage. An open port would prove less: another program could have taken it.

The properties differ from Kafka's defaults where those hinder tests: records may have any timestamp and never expire, internal topics are
small, and groups do not wait for more members. A cluster keeps three replicas of each topic, including internal topics, and acknowledges a
record when two replicas have it, as Kafka's documentation recommends for production.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream.drivers.class_archive import ClassArchive
from millstream.testing._jars import kafka_jars
from millstream.testing._java import EmbeddedKafkaError, TiedProcess, find_java

HOST = "127.0.0.1"
QUIET_CLIENT: dict[str, str | int] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
}
"""Client settings for a broker that stops and restarts: reconnect quickly, and log nothing to standard error meanwhile."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_TOOL_TIMEOUT_S = 120.0
_PAUSE_S = 0.02
_REPLICAS = 3
_LOG_LINES = 25
_QUICK_START = "-XX:TieredStopAtLevel=1"
_SMALL_JVM = ("-XX:+UseSerialGC", _QUICK_START, "-Dlog4j2.level=OFF")

_PROPERTIES: dict[str, str | int | bool] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,RELAYED:PLAINTEXT",
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
    "log.retention.ms": -1,
    "log.message.timestamp.after.max.ms": 2**63 - 1,
}


class PortTakenError(EmbeddedKafkaError):
    """Another program bound a port of the broker first."""


@dataclass(frozen=True)
class BrokerOptions:
    """The options of a broker; ``EmbeddedKafka`` documents each."""

    partitions: int
    properties: Mapping[str, str | int | bool]
    auto_create_topics: bool
    java: tuple[str, ...]
    relayed: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Member:
    """One broker of a cluster.

    Attributes:
        node: The broker's number, from 1.
        port: The port for clients and for the other brokers.
        controllers: The controller port of every broker of the cluster, including this one, by broker number.
        relayed: A second port for clients, and the port of a relay that is advertised for it; None for no relay.
    """

    node: int
    port: int
    controllers: Mapping[int, int]
    cluster: str
    relayed: tuple[int, int] | None = None


@final
class BrokerProcess:
    """A broker process and its home directory. Use it from one thread at a time.

    Args:
        home: Its directory. Existing storage in it is reused.
        member: Its number, ports and cluster.

    Raises:
        EmbeddedKafkaError: If Java or the jars are missing.
    """

    def __init__(self, home: Path, options: BrokerOptions, member: Member) -> None:
        self._home = home
        self._options = options
        self._member = member
        self._java = find_java()
        self._jars = kafka_jars()
        self._class_path = f"{self._jars}/*"
        self._archive = ClassArchive("kafka", self._java, self._jars)
        self._process: TiedProcess | None = None
        self._log_start = 0

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self._member.port}"

    @property
    def process(self) -> TiedProcess | None:
        return self._process if self._process and self._process.exit_code() is None else None

    def launch(self) -> None:
        (self._home / "tmp").mkdir(parents=True, exist_ok=True)
        self._write_properties()
        properties = str(self._home / "server.properties")
        if not (self._home / "data" / "meta.properties").exists():
            self.run_main("kafka.tools.StorageTool", ["format", "-t", self._member.cluster, "-c", properties])
        log = self._home / "broker.log"
        self._log_start = log.stat().st_size if log.exists() else 0
        options = [
            _QUICK_START,
            "-Dlog4j2.level=WARN",
            *self._options.java,
            *self._archive.options(note=True),
        ]
        command = [self._java, *options, *self._temporary(), "-cp", self._class_path]
        self._process = TiedProcess(
            [*command, "kafka.Kafka", "server.properties"], log=log, directory=self._home
        )

    def await_answer(self, brokers: Collection[int]) -> None:
        """Wait until the broker answers and its metadata contain all running brokers.

        Raises:
            PortTakenError: If another program has one of its ports.
            EmbeddedKafkaError: If the broker did not start; the message ends with the last lines of its log.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, **QUIET_CLIENT})
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is None or (code := self._process.exit_code()) is not None:
                raise self._failure(f"ended with code {code} while it started")
            try:
                metadata = admin.list_topics(timeout=0.5)
            except KafkaException:
                continue
            finally:
                time.sleep(_PAUSE_S)
            if metadata.brokers.keys() >= set(brokers) and metadata.cluster_id == self._member.cluster:
                self._archive.make(self._class_path)
                return
        raise self._failure(f"did not answer within {_START_TIMEOUT_S:.0f} s")

    def end(self, *, orderly: bool) -> None:
        """End the process and wait until it has exited. If ``orderly``, it can close its logs; otherwise it is killed."""
        if self._process is not None:
            self._process.end(grace_s=_STOP_TIMEOUT_S if orderly else 0.0)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)

    def run_main(self, main: str, arguments: list[str], *, stdin: str = "") -> str:
        """Run a Java class of Kafka and wait until it ends.

        Raises:
            EmbeddedKafkaError: If the class failed or took longer than two minutes.
        """
        options = [*_SMALL_JVM, *self._archive.options(), *self._temporary()]
        command = [self._java, *options, "-cp", self._class_path, main, *arguments]
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedKafkaError(
                f"{main} {' '.join(arguments)} did not end within {error.timeout:.0f} s"
            ) from None
        if done.returncode != 0:
            output = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_LINES:])
            raise EmbeddedKafkaError(
                f"{main} {' '.join(arguments)} ended with code {done.returncode}:\n{output}"
            )
        return done.stdout

    def _failure(self, what: str) -> EmbeddedKafkaError:
        log = self._home / "broker.log"
        text = log.read_bytes()[self._log_start :].decode(errors="replace")
        kind = PortTakenError if "Address already in use" in text else EmbeddedKafkaError
        last = "\n".join(text.splitlines()[-_LOG_LINES:])
        return kind(f"the broker on {self.bootstrap_servers} {what}. Last lines of its log {log}:\n{last}")

    def _temporary(self) -> list[str]:
        """Return the JVM option for the directory of unpacked native libraries. It is below ``home``, because a killed JVM leaves them."""
        return [f"-Djava.io.tmpdir={self._home / 'tmp'}"]

    def _write_properties(self) -> None:
        member = self._member
        listens = advertised = f"PLAINTEXT://{HOST}:{member.port}"
        if member.relayed is not None:
            listens += f",RELAYED://{HOST}:{member.relayed[0]}"
            advertised += f",RELAYED://{HOST}:{member.relayed[1]}"
        replicas = min(len(member.controllers), _REPLICAS)
        acknowledge = max(replicas - 1, 1)
        properties = {
            **_PROPERTIES,
            "node.id": member.node,
            "listeners": f"{listens},CONTROLLER://{HOST}:{member.controllers[member.node]}",
            "advertised.listeners": advertised,
            "controller.quorum.voters": ",".join(f"{n}@{HOST}:{p}" for n, p in member.controllers.items()),
            "default.replication.factor": replicas,
            "min.insync.replicas": acknowledge,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": acknowledge,
            "log.dirs": str(self._home / "data"),
            "num.partitions": self._options.partitions,
            "auto.create.topics.enable": self._options.auto_create_topics,
            **self._options.properties,
        }
        lines = (f"{name}={str(v).lower() if isinstance(v, bool) else v}\n" for name, v in properties.items())
        (self._home / "server.properties").write_text("".join(lines))
