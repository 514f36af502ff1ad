"""Faults of the harness besides killed processes: a cut network, a jumping clock, a full disk."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, TypeVar, cast

import pytest

from millstream.drivers.spark.clock import host_clock
from millstream.testing.crash import APPS
from millstream.testing.crash.crash_report import Kill
from millstream.testing.crash.faults import Faults, FaultTargets, JumpingClock, Space
from millstream.testing.crash.network import Network
from millstream.testing.crash.processes import CrashedProgram, CrashTestError
from millstream.testing.crash.setup import Setup
from millstream.testing.kafka import EmbeddedKafka
from unit.small_disk import run_on_small_disk

T = TypeVar("T")


class Echo:
    """An echo server."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as network:
        echoes = [Echo(port) for port, _ in network.ports]
        yield network
        for echo in echoes:
            echo.close()


def connected(network: Network, relay: int = 0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", network.ports[relay][1]), timeout=60)


def echoed(connection: socket.socket, data: bytes) -> bytes:
    threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
    answer = b""
    while len(answer) < len(data) and (more := connection.recv(1 << 16)):
        answer += more
    return answer


def is_over(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


class TestNetwork:
    def test_relays_data_to_the_broker_of_each_port(self, network: Network) -> None:
        data = os.urandom(3 << 20)
        for relay in range(2):
            with connected(network, relay) as connection:
                assert echoed(connection, data) == data
        assert network.servers == ",".join(f"127.0.0.1:{port}" for _, port in network.ports)

    def test_a_cut_network_ends_all_connections_and_accepts_none_until_it_is_healed(
        self, network: Network
    ) -> None:
        open_connections = [connected(network, relay) for relay in (0, 0, 1)]
        assert all(echoed(connection, b"before") for connection in open_connections)
        network.cut()
        assert all(is_over(connection) for connection in open_connections)
        with connected(network) as meanwhile:
            assert is_over(meanwhile)
        network.heal()
        with connected(network) as after:
            assert echoed(after, b"after") == b"after"

    def test_a_connection_to_a_missing_broker_ends(self) -> None:
        with Network(1) as network, connected(network) as connection:
            assert is_over(connection)


def ahead_ms(clock: JumpingClock) -> int:
    """Return how far a clock is ahead of the host's clock."""
    return clock() - host_clock()


class TestClock:
    def test_follows_the_host_until_it_is_moved_in_all_processes(self, tmp_path: Path) -> None:
        clock = JumpingClock(tmp_path / "clock")
        unpickled: JumpingClock = pickle.loads(pickle.dumps(clock))
        assert abs(ahead_ms(unpickled)) < 60_000
        clock.move(-3_600_000)
        assert abs(ahead_ms(unpickled) + 3_600_000) < 60_000
        clock.move(0)
        assert abs(ahead_ms(unpickled)) < 60_000


_FILLS = """
import errno, pathlib, sys
from millstream.testing.crash.faults import Space
disk = pathlib.Path(sys.argv[1])
space = Space(disk)
space.fill()
try:
    (disk / "more").write_bytes(b"x")
    raise AssertionError("there is room")
except OSError as error:
    assert error.errno == errno.ENOSPC
space.release()
(disk / "more").write_bytes(bytes(1 << 20))
"""

_FILLS_AT_THE_END = f"""
import pathlib, sys
sys.path.append({str(Path(__file__).parents[2])!r})
from millstream.testing.crash.crash_report import Kill
from millstream.testing.crash.faults import FaultTargets, Faults, Space
from unit.testing.test_crash_surroundings import Ended
disk = pathlib.Path(sys.argv[1])
around = FaultTargets(None, disk, None, None, Space(disk), 1)
Faults(around, "app", None, Ended()).strike(Kill("space", 0, None), 0.5)
(disk / "more").write_bytes(bytes(1 << 20))
"""


class Ended:
    """A run whose whole workload has been processed."""

    ends: ClassVar[list[str]] = []

    def until(self, holds: Callable[[], T], what: str) -> T:
        answer = holds()
        assert answer, f"waits for {what}"
        return answer

    def at_end(self) -> bool:
        return True

    def start(self) -> None:
        raise AssertionError("nobody was killed")

    def pause(self, seconds: float) -> None:
        pass


@pytest.mark.parametrize("stop_s", [0.0, 2.0])
def test_a_fault_ends_if_its_target_no_longer_runs(tmp_path: Path, stop_s: float) -> None:
    fault_targets = FaultTargets(cast("EmbeddedKafka", None), tmp_path, None, None, None, 1)
    program = SimpleNamespace(victims=lambda target: [])
    faults = Faults(fault_targets, "app", cast("CrashedProgram", program), Ended())
    victim = faults.strike(Kill("async-worker", 0, None, stopped_s=stop_s), 0.5)
    assert victim == "none is running any more"


class TestSpace:
    def test_is_released_when_the_application_has_nothing_more_to_write(self, tmp_path: Path) -> None:
        run_on_small_disk(tmp_path, _FILLS_AT_THE_END)

    def test_is_filled_to_the_last_byte_and_released(self, tmp_path: Path) -> None:
        run_on_small_disk(tmp_path, _FILLS)

    def test_each_run_has_its_own_directory_on_a_small_disk(self, tmp_path: Path) -> None:
        app = APPS["two-stores"]
        states = {
            Setup(app, "exactly_once", seed, 100, ("space",), disk=disk).state(tmp_path / "home")
            for seed, disk in [(1, tmp_path), (2, tmp_path), (1, None)]
        }
        assert states == {tmp_path / "two-stores-1", tmp_path / "two-stores-2", tmp_path / "home/state"}

    def test_a_large_disk_is_not_filled(self) -> None:
        statistics = os.statvfs("/")
        if statistics.f_bavail * statistics.f_frsize < 4 << 30:
            pytest.skip("there is no large disk here")
        with pytest.raises(
            CrashTestError, match=r"MiB free; a disk that the harness fills must be a separate file system"
        ):
            Space(Path("/"))
