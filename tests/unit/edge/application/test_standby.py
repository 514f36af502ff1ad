"""A standby, without Kafka and Spark: what its port answers while it waits, and after it is elected."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from millstream.core.model.errors import SettingsError
from millstream.core.topology.plan import Plan
from millstream.edge.application import standby as module
from millstream.edge.application.standby import Standby
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.web import listeners
from millstream.edge.web.listeners import Listeners
from millstream.edge.web.page_address import address_of
from unit.edge.metrics.fake_application import FakeApplication

_WAIT_S = 60


class FakeElection:
    """An election that the test decides."""

    def __init__(self) -> None:
        self.won, self.waiting, self.left = (threading.Event() for _ in range(3))
        self.interrupted = False

    def wait(self, timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            self.waiting.set()
            self.won.wait(_WAIT_S)
            if self.interrupted:
                raise SystemExit(143)
        return self.won.is_set()

    def wait_replaced(self, timeout_s: float) -> bool:
        return False

    def leave(self) -> None:
        self.left.set()


class FakeSession:
    """A session on a cluster, where standbys do not warm up."""

    def __init__(self, *arguments: Any) -> None:
        self.lacking: list[str] = []

    def session(self, settings: Any) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(master="yarn"))


@pytest.fixture
def election(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeElection]:
    made = FakeElection()
    monkeypatch.setattr(module, "Clients", lambda *arguments: SimpleNamespace(election=lambda: made))
    monkeypatch.setattr(module, "ApplicationSession", FakeSession)
    yield made
    made.won.set()


@pytest.fixture
def program() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def started(
    program: ThreadPoolExecutor, election: FakeElection, home: Path, port: int = 0
) -> Future[Standby]:
    """Start a driver in another thread, and return when it waits."""
    settings = settings_from(
        {"bootstrap_servers": "unused:1", "metrics_port": port, "state_dir": str(home), "page_port": 0}
    )
    elected = program.submit(Standby.elected, "orders", settings)
    while not (election.waiting.wait(0.1) or elected.done()):
        pass
    return elected


def taken_over(standby: Standby, home: Path, port: int = 0, page: int | None = None) -> dict[str, str]:
    """Let the listeners show a running application, and return their URLs."""
    (home / "orders").mkdir(exist_ok=True)
    settings = settings_from(
        {"bootstrap_servers": "unused:1", "metrics_port": port, "page_port": page, "state_dir": str(home)}
    )
    standby.listeners.open(FakeApplication(), settings, lambda *arguments, **facts: None, no_plan)
    return standby.listeners.urls


def no_plan() -> Plan:
    raise AssertionError("metrics need none")


def ask(url: str, path: str) -> tuple[int, str]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def urls_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    events = [record.facts for record in caplog.records if hasattr(record, "facts")]
    return [facts["metrics"] for facts in events if facts["event"] == "listens"]


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream")


def test_a_standby_is_alive_but_not_ready_until_it_runs_the_application(
    program: ThreadPoolExecutor, election: FakeElection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elected = started(program, election, tmp_path)
    (url,) = urls_in(caplog)
    assert ask(url, "/healthz") == (200, "standby\n")
    assert ask(url, "/readyz") == (503, "standby\n")
    assert 'millstream_state{application="orders",state="standby"} 1.0' in ask(url, "/metrics")[1]
    election.won.set()
    standby = elected.result(_WAIT_S)
    assert ask(url, "/readyz") == (503, "starting\n")
    assert taken_over(standby, tmp_path) == {"metrics": url}
    assert ask(url, "/readyz") == (200, "running\n")
    assert 'millstream_state{application="orders",state="standby"} 0.0' in ask(url, "/metrics")[1]
    standby.leave()
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/healthz")


def test_an_interrupted_standby_closes_its_port_and_leaves_the_election(
    program: ThreadPoolExecutor, election: FakeElection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    election.interrupted = True
    elected = started(program, election, tmp_path)
    (url,) = urls_in(caplog)
    election.won.set()
    with pytest.raises(SystemExit):
        elected.result(_WAIT_S)
    assert election.left.is_set()
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/healthz")


def test_a_standby_waits_without_a_port_that_the_running_driver_of_its_host_uses(
    program: ThreadPoolExecutor, election: FakeElection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        elected = started(program, election, tmp_path, port)
        assert not elected.done()
        assert f"cannot listen on 127.0.0.1:{port}" in caplog.text
        election.won.set()
        standby = elected.result(_WAIT_S)
    assert ask(taken_over(standby, tmp_path, port)["metrics"], "/readyz") == (200, "running\n")
    standby.leave()


def test_a_takeover_opens_the_ports_of_the_former_driver_as_soon_as_they_are_free(
    program: ThreadPoolExecutor,
    election: FakeElection,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "_RETRY_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as metrics, socket.create_server(("127.0.0.1", 0)) as page:
        ports = metrics.getsockname()[1], page.getsockname()[1]
        elected = started(program, election, tmp_path, ports[0])
        election.won.set()
        standby = elected.result(_WAIT_S)
        urls = taken_over(standby, tmp_path, *ports)
        while not all(f":{port} (Address already in use)" in caplog.text for port in ports):
            pass
        assert urls == {}
    while len(urls) < 2:
        pass
    assert ask(urls["metrics"], "/readyz") == (200, "running\n")
    assert address_of(tmp_path / "orders", "orders").startswith(urls["page"])
    standby.leave()
    for url in urls.values():
        with pytest.raises(ConnectionRefusedError):
            ask(url, "/")


def test_a_takeover_logs_that_it_waits_for_the_former_driver(
    program: ThreadPoolExecutor, election: FakeElection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A suspended driver keeps the lease of its host. The elected driver used to wait for it without a log message."""
    elected = started(program, election, tmp_path)
    election.won.set()
    standby = elected.result(_WAIT_S)
    held = Lease.take(tmp_path / "orders", "orders", "running")
    tries: list[None] = []

    def take() -> Lease:
        tries.append(None)
        if len(tries) == 3:
            held.release()
        return Lease.take(tmp_path / "orders", "orders", "running")

    standby.lease(take).release()
    waits = [record.message for record in caplog.records if "waiting for the former driver" in record.message]
    assert len(waits) == 1
    assert str(tmp_path / "orders" / "lock") in waits[0]
    standby.leave()


def test_an_application_that_has_ended_opens_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_RETRY_S", 0.05)
    before, made = set(threading.enumerate()), Listeners()
    made.takes_over = True
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = settings_from(
            {
                "bootstrap_servers": "unused:1",
                "metrics_port": other.getsockname()[1],
                "state_dir": str(tmp_path),
            }
        )
        made.open(FakeApplication(), settings, lambda *arguments, **facts: None, no_plan)
        made.close()
    while not set(threading.enumerate()) <= before:
        pass
    assert made.urls == {}


def test_an_address_of_another_host_ends_a_standby(election: FakeElection, tmp_path: Path) -> None:
    options = {"bootstrap_servers": "unused:1", "metrics_port": 0, "http_host": "192.0.2.1"}
    with pytest.raises(SettingsError, match="set http_host to an address"):
        Standby.elected("orders", settings_from({**options, "state_dir": str(tmp_path)}))
