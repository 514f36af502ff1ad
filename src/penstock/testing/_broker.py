"""One broker process of Apache Kafka: its ports, its storage, its start and its end.

The broker is its own KRaft controller. Its *home* directory holds ``server.properties``, ``broker.log``, the data and a
directory for temporary files. It has *started* when it answers a metadata request with the cluster id that its own
storage carries: an open port would prove less, since between choosing a port and binding it another program can take
it, and that program may be a broker too.

The properties differ from Kafka's defaults where a test would suffer: records keep any timestamp and never expire, internal
topics are small and have one replica, and groups do not wait for more members.
"""

from __future__ import annotations

import base64
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.testing._jars import kafka_jars
from penstock.testing._java import EmbeddedKafkaError, TiedProcess, find_java

HOST = "127.0.0.1"
QUIET_CLIENT: dict[str, str | int] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
}
"""Client settings for a broker that comes and goes: come back quickly, and do not write to standard error meanwhile."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_TOOL_TIMEOUT_S = 120.0
_ATTEMPTS = 5
_PAUSE_S = 0.02
_LOG_LINES = 25
_SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF")

_PROPERTIES: dict[str, str | int | bool] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "log.retention.ms": -1,
    "log.message.timestamp.after.max.ms": 2**63 - 1,
}


class _PortTakenError(EmbeddedKafkaError):
    """Another program bound a port of the broker first."""


@dataclass(frozen=True)
class BrokerOptions:
    """What a broker is started with; see ``EmbeddedKafka`` for the meaning of each option."""

    partitions: int
    properties: Mapping[str, str | int | bool]
    auto_create_topics: bool
    heap: str


@final
class Broker:
    """A broker process and its home directory. Use it from one thread at a time.

    Args:
        home: Existing directory; storage that is already in it is kept.
        options: What to start it with.

    Raises:
        EmbeddedKafkaError: Java or the jars are missing.
    """

    def __init__(self, home: Path, options: BrokerOptions) -> None:
        self._home = home
        self._options = options
        self._java = find_java()
        self._jars = kafka_jars()
        self._ports = (0, 0)
        self._process: TiedProcess | None = None
        self._log_start = 0

    @property
    def bootstrap_servers(self) -> str:
        """Host and port of the broker."""
        return f"{HOST}:{self._ports[0]}"

    @property
    def process(self) -> TiedProcess | None:
        """The process as long as it runs."""
        return self._process if self._process and self._process.exit_code() is None else None

    def start(self) -> AdminClient:
        """Start on free ports and wait until the broker answers.

        Returns:
            A client that is connected to it.

        Raises:
            EmbeddedKafkaError: It did not start; the message ends with the last lines of its log.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            self._ports = free_ports()
            try:
                return self._launch()
            except _PortTakenError:
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def restart(self) -> AdminClient:
        """Start again with the same ports and data, after an orderly stop if the broker still runs.

        Returns:
            A client that is connected to it.

        Raises:
            EmbeddedKafkaError: It did not start; the message ends with the last lines of its log.
        """
        self.end(orderly=True)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._launch()
            except _PortTakenError:
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(attempt * 0.2)
        raise AssertionError("unreachable")

    def end(self, *, orderly: bool) -> None:
        """End the process and wait until it is gone.

        Args:
            orderly: Let the broker close its logs first; otherwise it is killed.
        """
        if self._process is not None:
            self._process.end(grace_s=_STOP_TIMEOUT_S if orderly else 0.0)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the broker, if it runs.

        Args:
            number: For example ``signal.SIGSTOP``.
        """
        if self._process is not None:
            self._process.signal(number)

    def run_main(self, main: str, arguments: list[str], *, stdin: str = "") -> str:
        """Run a Java class of Kafka to its end.

        Args:
            main: Name of the class.
            arguments: Its arguments.
            stdin: What it reads from standard input.

        Returns:
            What it wrote to standard output.

        Raises:
            EmbeddedKafkaError: It failed or took longer than two minutes.
        """
        command = [self._java, *_SMALL_JVM, *self._temporary(), "-cp", f"{self._jars}/*", main, *arguments]
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedKafkaError(
                f"{main} {' '.join(arguments)} did not end within {error.timeout:.0f} s"
            ) from None
        if done.returncode != 0:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_LINES:])
            raise EmbeddedKafkaError(
                f"{main} {' '.join(arguments)} ended with code {done.returncode}:\n{said}"
            )
        return done.stdout

    def _launch(self) -> AdminClient:
        (self._home / "tmp").mkdir(exist_ok=True)
        self._write_properties()
        meta = self._home / "data" / "meta.properties"
        if not meta.exists():
            arguments = [
                "format",
                "-t",
                _new_cluster_id(),
                "-c",
                str(self._home / "server.properties"),
                "--standalone",
            ]
            self.run_main("kafka.tools.StorageTool", arguments)
        cluster = next(line[11:] for line in meta.read_text().splitlines() if line.startswith("cluster.id="))
        log = self._home / "broker.log"
        self._log_start = log.stat().st_size if log.exists() else 0
        memory = f"-Xmx{self._options.heap}"
        command = [self._java, memory, "-Dlog4j2.level=WARN", *self._temporary(), "-cp", f"{self._jars}/*"]
        self._process = TiedProcess(
            [*command, "kafka.Kafka", "server.properties"], log=log, directory=self._home
        )
        try:
            return self._await_answer(self._process, cluster)
        except BaseException:
            self._process.end()
            raise

    def _await_answer(self, process: TiedProcess, cluster: str) -> AdminClient:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, **QUIET_CLIENT})
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.exit_code() is not None:
                raise self._failure(f"ended with code {process.exit_code()} while it started")
            try:
                metadata = admin.list_topics(timeout=0.5)
            except KafkaException:
                continue
            finally:
                time.sleep(_PAUSE_S)
            if metadata.brokers and metadata.cluster_id == cluster:
                return admin
        raise self._failure(f"did not answer within {_START_TIMEOUT_S:.0f} s")

    def _failure(self, what: str) -> EmbeddedKafkaError:
        log = self._home / "broker.log"
        text = log.read_bytes()[self._log_start :].decode(errors="replace")
        kind = _PortTakenError if "Address already in use" in text else EmbeddedKafkaError
        last = "\n".join(text.splitlines()[-_LOG_LINES:])
        return kind(f"the broker on {self.bootstrap_servers} {what}. Last lines of its log {log}:\n{last}")

    def _temporary(self) -> list[str]:
        """Where the JVM unpacks native libraries; a killed one leaves them, so it must be a place that goes away."""
        return [f"-Djava.io.tmpdir={self._home / 'tmp'}"]

    def _write_properties(self) -> None:
        broker, controller = self._ports
        properties = {
            **_PROPERTIES,
            "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker}",
            "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
            "log.dirs": str(self._home / "data"),
            "num.partitions": self._options.partitions,
            "auto.create.topics.enable": self._options.auto_create_topics,
            **self._options.properties,
        }
        lines = (f"{name}={str(v).lower() if isinstance(v, bool) else v}\n" for name, v in properties.items())
        (self._home / "server.properties").write_text("".join(lines))


def free_ports() -> tuple[int, int]:
    """Choose two TCP ports that nobody uses at this moment.

    Returns:
        Two different port numbers.
    """
    with socket.socket() as one, socket.socket() as other:
        one.bind((HOST, 0))
        other.bind((HOST, 0))
        return one.getsockname()[1], other.getsockname()[1]


def _new_cluster_id() -> str:
    """Kafka's own form: the 16 bytes of a UUID in URL-safe base64, without padding, not starting with a dash."""
    while True:
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not name.startswith("-"):
            return name
