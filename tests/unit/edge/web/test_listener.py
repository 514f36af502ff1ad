"""Connections of the HTTP server: what is refused before a route is called, and what happens when it is closed."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from millstream.core.model.errors import SettingsError
from millstream.edge.web.listener import HttpRequest, HttpResponse, Listener

HEAD = b"Host: localhost\r\nConnection: close\r\n"


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse.text("here")


def listener_at(host: str) -> Listener:
    return Listener(host, 0, {("GET", "/"): answer, ("POST", "/"): answer})


@pytest.fixture
def listener() -> Iterator[Listener]:
    new_listener = listener_at("127.0.0.1")
    yield new_listener
    new_listener.close()


def replies(listener: Listener, request: bytes) -> list[int]:
    """Send bytes, and return the statuses of all responses until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as connection:
        connection.sendall(request)
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    ("request_line", "host"), [(b"GET /", b"[::1"), (b"GET http://[/", b"localhost"), (b"GET /", b"[x]")]
)
def test_a_malformed_address_is_a_bad_request(listener: Listener, request_line: bytes, host: bytes) -> None:
    request = request_line + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
    assert replies(listener, request) == [400]


def test_the_body_of_a_get_is_not_taken_as_the_next_request(listener: Listener) -> None:
    body = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(body)
    assert replies(listener, b"GET / HTTP/1.1\r\n" + HEAD + length + b"\r\n" + body) == [200]
    kept = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n" + body
    assert replies(listener, kept + b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n") == [200, 200]


def test_a_kept_connection_ends_when_the_server_is_closed() -> None:
    listener = listener_at("127.0.0.1")
    connection = http.client.HTTPConnection(
        "127.0.0.1", listener.port, timeout=5
    )  # shorter than the timeout of the server
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"here\n"
    listener.close()
    assert connection.sock.recv(1) == b""


def test_a_request_after_the_server_is_closed_is_not_answered_by_a_route() -> None:
    calls: list[int] = []
    listeners: list[Listener] = []

    def closing(request: HttpRequest) -> HttpResponse:
        calls.append(1)
        listeners[0].close()
        return HttpResponse.text("last")

    listeners.append(Listener("127.0.0.1", 0, {("GET", "/"): closing}))
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert replies(listeners[0], request * 2) == [200, 503]
    assert calls == [1]


@pytest.mark.parametrize("host", ["127.1", "::ffff:127.0.0.1", "localhost", "127.0.0.2"])
def test_a_foreign_host_name_is_refused_on_every_form_of_a_loopback_address(host: str) -> None:
    try:
        listener = listener_at(host)
    except SettingsError as error:
        pytest.skip(str(error))  # the host has no such address, for example without IPv6
    address = listener._server.server_address[0]
    try:
        for name, status in (("evil.example", 421), (f"[{host}]" if ":" in host else host, 200)):
            connection = http.client.HTTPConnection(str(address), listener.port, timeout=10)
            connection.request("GET", "/", headers={"Host": name})
            assert connection.getresponse().status == status
            connection.close()
    finally:
        listener.close()
