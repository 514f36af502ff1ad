"""The port for metrics, queried over HTTP as by Prometheus, Kubernetes and pages of other origins."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from millstream.core.model.errors import SettingsError
from millstream.core.topology.plan import Plan
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.web import listener
from millstream.edge.web.listeners import Listeners
from unit.edge.metrics.fake_application import FakeApplication

HttpAnswer = tuple[int, str, dict[str, str]]


def no_plan() -> Plan:
    raise AssertionError("metrics need none")


@pytest.fixture
def looked() -> FakeApplication:
    return FakeApplication()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def listeners(looked: FakeApplication, said: list[str]) -> Iterator[Listeners]:
    new_listeners = Listeners()
    settings = settings_from({"bootstrap_servers": "unused:1", "metrics_port": 0})
    new_listeners.open(looked, settings, lambda event, text, **facts: said.append(text), no_plan)
    yield new_listeners
    new_listeners.close()


def ask(listeners: Listeners, path: str, method: str = "GET", **headers: str) -> HttpAnswer:
    address = urlsplit(listeners.urls["metrics"])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
    finally:
        connection.close()


def test_metrics_are_text_for_prometheus(listeners: Listeners, said: list[str]) -> None:
    status, text, headers = ask(listeners, "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert 'millstream_store_bytes{application="orders",store="counts",task="0_0"} 7.0' in text
    assert said == [f"metrics at {listeners.urls['metrics']}/metrics"]


def test_openmetrics_is_returned_if_it_is_requested(listeners: Listeners) -> None:
    _, text, headers = ask(listeners, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("state", "lives", "ready"),
    [
        ("starting", 200, 503),
        ("running", 200, 200),
        ("waiting", 200, 503),
        ("draining", 200, 200),
        ("stopping", 200, 503),
        ("failed", 503, 503),
    ],
)
def test_health_follows_the_state(
    listeners: Listeners, looked: FakeApplication, state: str, lives: int, ready: int
) -> None:
    looked.state = state
    assert ask(listeners, "/healthz")[:2] == (lives, f"{state}\n")
    assert ask(listeners, "/readyz")[0] == ready


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_head_returns_the_headers_of_get_without_a_body(listeners: Listeners, path: str) -> None:
    status, text, headers = ask(listeners, path)
    assert ask(listeners, path, "HEAD")[:2] == (status, "")
    assert ask(listeners, path, "HEAD")[2]["content-length"] == str(len(text))
    assert ask(listeners, "/nowhere", "HEAD")[:2] == (404, "")
    assert headers["content-length"] == str(len(text))


def test_responses_do_not_wait_for_the_acknowledgement_of_their_headers(listeners: Listeners) -> None:
    """If the connection stays open, a client acknowledges the headers only after 40 ms."""
    address, seconds = urlsplit(listeners.urls["metrics"]), []
    with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)) as connection:
        for _ in range(10):
            began = time.monotonic()
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            seconds.append(time.monotonic() - began)
    assert min(seconds[5:]) < 0.03  # the system acknowledges the first ones at once


def test_other_paths_and_methods_are_refused(listeners: Listeners) -> None:
    assert ask(listeners, "/")[0] == 404
    assert ask(listeners, "/metrics", "POST")[0] == 405


def test_a_foreign_host_name_is_refused_against_dns_rebinding(listeners: Listeners) -> None:
    assert ask(listeners, "/metrics", Host="evil.example:80")[0] == 421


def test_pages_of_other_origins_are_refused(listeners: Listeners) -> None:
    assert ask(listeners, "/metrics", Origin="http://evil.example")[0] == 403
    assert ask(listeners, "/metrics", Sec_Fetch_Site="cross-site")[0] == 403
    assert "access-control-allow-origin" not in ask(listeners, "/metrics")[2]


def test_idle_connections_do_not_use_up_the_threads_of_the_program(
    listeners: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener._PageHandler, "timeout", 300)  # on a busy machine, connecting takes long
    address = urlsplit(listeners.urls["metrics"])
    before = threading.active_count()
    with ExitStack() as silent:
        for _ in range(2 * listener._MOST_CONNECTIONS):
            silent.enter_context(socket.create_connection((address.hostname or "", address.port or 0)))
        with pytest.raises(ConnectionError):
            ask(listeners, "/healthz")
        assert threading.active_count() <= before + listener._MOST_CONNECTIONS
    while not answers(listeners):  # until the server notices that they have ended
        pass


def answers(listeners: Listeners) -> bool:
    try:
        return ask(listeners, "/healthz")[0] == 200
    except OSError:
        return False


def test_nothing_listens_after_the_listeners_are_closed(listeners: Listeners) -> None:
    listeners.close()
    with pytest.raises(ConnectionRefusedError):
        ask(listeners, "/metrics")


def test_a_port_that_is_in_use_is_reported(listeners: Listeners, looked: FakeApplication) -> None:
    taken = urlsplit(listeners.urls["metrics"]).port
    settings = settings_from({"bootstrap_servers": "unused:1", "metrics_port": taken})
    with pytest.raises(SettingsError, match=rf"cannot listen on 127\.0\.0\.1:{taken} .*choose another port"):
        Listeners().open(looked, settings, lambda *arguments, **facts: None, no_plan)


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_listeners_can_use_an_ipv6_address(looked: FakeApplication, host: str) -> None:
    listeners = Listeners()
    settings = settings_from({"bootstrap_servers": "unused:1", "metrics_port": 0, "http_host": host})
    listeners.open(looked, settings, lambda *arguments, **facts: None, no_plan)
    try:
        assert listeners.urls["metrics"].startswith(f"http://[{host}]:")
        assert ask(listeners, "/healthz")[0] == 200
    finally:
        listeners.close()


def test_an_address_of_another_host_is_reported_as_an_error_of_http_host(looked: FakeApplication) -> None:
    settings = settings_from({"bootstrap_servers": "unused:1", "metrics_port": 0, "http_host": "192.0.2.1"})
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1:0 .*set http_host to an address"):
        Listeners().open(looked, settings, lambda *arguments, **facts: None, no_plan)
