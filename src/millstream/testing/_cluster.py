"""The brokers of an embedded cluster, started and stopped together or one by one.

All ports are chosen before the first broker starts, because every broker must know the ports of all controllers. If another program
takes a port before the broker binds it, the start is retried with other ports.
"""

from __future__ import annotations

import base64
import signal
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import final

from confluent_kafka.admin import AdminClient

from millstream.testing._broker import (
    HOST,
    QUIET_CLIENT,
    BrokerOptions,
    BrokerProcess,
    Member,
    PortTakenError,
)
from millstream.testing._java import EmbeddedKafkaError

_ATTEMPTS = 5
_PORTS_PER_BROKER = 2


@final
class Cluster:
    """The brokers of one cluster, or a single broker. Use it from one thread at a time.

    Args:
        home: An existing directory. Storage in it is reused. Several brokers each have a subdirectory.
    """

    def __init__(self, home: Path, options: BrokerOptions, size: int) -> None:
        self._options = options
        self._homes = [home] if size == 1 else [home / f"broker-{number}" for number in range(size)]
        self._brokers: list[BrokerProcess] = []

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self._brokers)

    def start(self) -> AdminClient:
        """Start all brokers on free ports, wait until they answer, and return a connected client."""

        def launch() -> None:
            self._brokers = self._create_brokers(free_ports(len(self._homes) * _PORTS_PER_BROKER))
            self._launch(self._brokers)

        return self._retried(launch, pause_s=0)

    def restart(self, broker: int | None) -> AdminClient:
        """Restart one broker, or all, with the same ports and data. Brokers that still run are first shut down in order.

        Args:
            broker: The number of the broker, from 0; None for all.
        """
        chosen = self._chosen_brokers(broker)
        self.end(broker, orderly=True)
        return self._retried(lambda: self._launch(chosen), pause_s=0.2)

    def end(self, broker: int | None, *, orderly: bool) -> None:
        """End one broker, or all, and wait until they have exited.

        Args:
            broker: The number of the broker, from 0; None for all.
            orderly: Whether the brokers may first close their logs; otherwise they are killed.
        """
        chosen = self._chosen_brokers(broker)
        # End them together: the last broker cannot shut down in order without the others.
        if orderly and len(chosen) > 1:
            for member in chosen:
                member.signal(signal.SIGCONT)
                member.signal(signal.SIGTERM)
        for member in chosen:
            member.end(orderly=orderly)

    def signal(self, broker: int | None, number: signal.Signals) -> None:
        """Send a signal to one broker, from 0, or all. Brokers that do not run are skipped."""
        for chosen in self._chosen_brokers(broker):
            chosen.signal(number)

    def pids(self) -> dict[int, int]:
        """Return the process ids of the running brokers, by broker number from 0."""
        return {
            number: broker.process.pid
            for number, broker in enumerate(self._brokers)
            if broker.process is not None
        }

    def run_main(self, main: str, arguments: list[str], *, stdin: str = "") -> str:
        return self._brokers[0].run_main(main, arguments, stdin=stdin)

    def _chosen_brokers(self, broker: int | None) -> Sequence[BrokerProcess]:
        if broker is None:
            return self._brokers
        if not 0 <= broker < len(self._brokers):
            raise EmbeddedKafkaError(
                f"there is no broker {broker}; the cluster has {len(self._brokers)}, numbered from 0"
            )
        return [self._brokers[broker]]

    def _create_brokers(self, ports: Sequence[int]) -> list[BrokerProcess]:
        """Create the brokers with the given ports: first those for clients, then those for controllers."""
        of_clients, of_controllers = ports[: len(self._homes)], ports[len(self._homes) :]
        controllers = dict(enumerate(of_controllers, start=1))
        cluster = _cluster_id(self._homes[0] / "data" / "meta.properties")
        relayed: Sequence[tuple[int, int] | None] = self._options.relayed or [None] * len(self._homes)
        return [
            BrokerProcess(home, self._options, Member(node, port, controllers, cluster, relay))
            for (node, home), port, relay in zip(enumerate(self._homes, start=1), of_clients, relayed)
        ]

    def _launch(self, chosen: Sequence[BrokerProcess]) -> None:
        """Start brokers together, because none answers before most controllers run. If one does not start, end all."""
        with ExitStack() as failed:
            for broker in chosen:
                failed.callback(broker.end, orderly=False)
                broker.launch()
            running = [number + 1 for number in self.pids()]
            for broker in chosen:
                broker.await_answer(running)
            failed.pop_all()

    def _retried(self, launch: Callable[[], None], *, pause_s: float) -> AdminClient:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                launch()
                break
            except PortTakenError:
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(attempt * pause_s)
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, **QUIET_CLIENT})


def check_sizes(partitions: int, brokers: int, relayed: Sequence[tuple[int, int]]) -> None:
    """Refuse numbers with which no broker can start.

    Raises:
        ValueError: If there is no partition, no broker, or not one relay for each broker.
    """
    for name, count in (("partitions", partitions), ("brokers", brokers)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {count!r}")
    if relayed and len(relayed) != brokers:
        raise ValueError(f"relayed must have one entry for each of the {brokers} brokers, not {len(relayed)}")


def free_ports(number: int) -> list[int]:
    """Return distinct TCP ports that are currently free."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [sock.getsockname()[1] for sock in sockets]


def _cluster_id(meta: Path) -> str:
    """Return the cluster id of existing storage, or a new one in Kafka's format.

    The format is the 16 bytes of a UUID in URL-safe base64, without padding, and not starting with a dash.
    """
    if meta.exists():
        return next(line[11:] for line in meta.read_text().splitlines() if line.startswith("cluster.id="))
    while (name := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return name
