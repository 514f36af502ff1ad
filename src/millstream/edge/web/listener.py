"""A small HTTP server in threads of the program, for people and tools.

A browser sends requests on behalf of any page that a person visits. Therefore the server refuses requests from other origins. On a
loopback address it also refuses host names that are not its own, which prevents DNS rebinding. These checks run before routing.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from millstream.core.model.errors import MillstreamError, SettingsError
from millstream.edge.records.json_text import json_text

log = logging.getLogger("millstream.http")

_MOST_BYTES: Final = 1 << 16
_MOST_CONNECTIONS: Final = 100
_TIMEOUT_S: Final = 10
_OWN_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class HttpRequest:
    """A request. Header names are in lower case; the body is decoded JSON, empty if missing."""

    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HttpResponse:
    """A response; ``kind`` is its content type."""

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK

    @classmethod
    def text(cls, text: str, status: int = HTTPStatus.OK) -> HttpResponse:
        return cls(f"{text}\n".encode(), status=status)

    @classmethod
    def json(cls, data: object, status: int = HTTPStatus.OK) -> HttpResponse:
        """Return a response with JSON. NaN and infinite numbers, which JSON lacks, are sent as text."""
        return cls(json_text(data).encode(), "application/json", status)

    @classmethod
    def error(cls, why: str, status: int) -> HttpResponse:
        """Return a response for a request that fails: JSON with the field ``error``."""
        return cls.json({"error": why}, status)


Route = Callable[[HttpRequest], HttpResponse]
Guard = Callable[[str, HttpRequest], HttpResponse | None]
"""Checks the path and the request; returns a response to refuse the request, else None."""


def allow_all(path: str, request: HttpRequest) -> None:
    """Allow every request."""


class PortInUseError(SettingsError):
    """Another listener has the port."""


class Listener:
    """Serves requests until closed; each connection has its own thread.

    Args:
        port: The port; 0 for any free port.

    Raises:
        PortInUseError: If another listener has the port.
        SettingsError: If it cannot listen on this address for another reason.
    """

    def __init__(
        self, host: str, port: int, routes: Mapping[tuple[str, str], Route], guard: Guard = allow_all
    ) -> None:
        name = f"[{host}]" if ":" in host else host
        made = type("_PageHandler", (_PageHandler,), {"routes": routes, "guard": staticmethod(guard)})
        try:
            self._server = (_Ipv6Server if ":" in host else _Server)((host, port), made)
        except OSError as error:
            raise _unopened(f"{name}:{port}", error) from None
        self.port: int = self._server.server_address[1]
        if is_loopback(str(self._server.server_address[0])):  # of the address: 127.1 is one too
            self._server.own_names = _OWN_NAMES | {host.lower()}
        self.url = f"http://{name}:{self.port}"
        """The URL for a browser on this host."""
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.2},
            name="millstream-http",
            daemon=True,
        ).start()

    def close(self) -> None:
        """Stop listening. Requests that are being answered are finished; connections that wait for a request end."""
        self._server.closed = True
        self._server.shutdown()
        self._server.server_close()
        self._server.end_connections()


def _unopened(address: str, error: OSError) -> SettingsError:
    of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    advice = (
        "choose another port, or 0 for a free one" if of_port else "set http_host to an address of this host"
    )
    kind = PortInUseError if error.errno == errno.EADDRINUSE else SettingsError
    return kind(f"cannot listen on {address} ({error.strerror or error}): {advice}")


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach an IP address."""
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class _Server(ThreadingHTTPServer):
    """Serves a limited number of connections and closes others, which would use up the threads and files of the program."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    own_names: Collection[str] | None = None
    """The names of the server, if only this host can reach it; others are refused."""
    closed = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.Semaphore(_MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        """End the reading of requests; a response that is being written is not cut off."""
        with self._lock:
            for request in self._open:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request from %s ended early", client_address, exc_info=True)


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _PageHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "Millstream"
    sys_version = ""
    timeout = _TIMEOUT_S
    disable_nagle_algorithm = True  # the body would wait 40 ms until the client acknowledges the head
    routes: Mapping[tuple[str, str], Route]
    guard: Guard

    def do_GET(self) -> None:
        self._reply(self._response_to("GET"))

    do_HEAD = do_GET  # noqa: N815 - a name of http.server

    def do_POST(self) -> None:
        self._reply(self._response_to("POST"))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - overrides a method of http.server
        log.debug("%s", format % args)

    def _response_to(self, method: str) -> HttpResponse:
        server = self.server
        assert isinstance(server, _Server)
        if server.closed:
            self.close_connection = True
            return HttpResponse.error("the server is being closed", HTTPStatus.SERVICE_UNAVAILABLE)
        request = self._request(method)
        if isinstance(request, HttpResponse):
            return request
        try:
            path, name = urlsplit(self.path).path, urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError as error:
            return HttpResponse.error(f"not an address: {error}", HTTPStatus.BAD_REQUEST)
        refused = self._of_another_origin(request, name or "", server) or self.guard(path, request)
        if refused is not None:
            return refused
        route = self.routes.get((method, path))
        if route is None:
            known = path in {known for _, known in self.routes}
            status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
            return HttpResponse.error(f"there is no {method} {path}", status)
        try:
            return route(request)
        except MillstreamError as error:
            return HttpResponse.error(str(error), HTTPStatus.CONFLICT)
        except Exception:
            log.exception("could not answer %s %s", method, path)
            return HttpResponse.error("the request failed; see the log", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _request(self, method: str) -> HttpRequest | HttpResponse:
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal():
            self.close_connection = True
            return HttpResponse.error("the request needs a Content-Length", HTTPStatus.LENGTH_REQUIRED)
        if len(length) > len(str(_MOST_BYTES)) or int(length) > _MOST_BYTES:
            self.close_connection = True
            why = f"the body has more than {_MOST_BYTES:,} bytes"
            return HttpResponse.error(why, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        content = self.rfile.read(int(length))
        if method == "GET":  # its body, if any, must not be taken for the next request
            return HttpRequest(headers)
        try:
            body = json.loads(content or b"{}")
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return HttpResponse.error("the body is not a JSON object", HTTPStatus.BAD_REQUEST)
        return HttpRequest(headers, body)

    def _of_another_origin(self, request: HttpRequest, name: str, server: _Server) -> HttpResponse | None:
        """Refuse requests from other origins and, on a loopback address, requests for other host names."""
        if server.own_names is not None and name not in server.own_names:
            return HttpResponse.error("unknown name", HTTPStatus.MISDIRECTED_REQUEST)
        origin, own = request.headers.get("origin"), f"http://{request.headers.get('host', '')}"
        if (origin is not None and origin != own) or request.headers.get("sec-fetch-site") in (
            "cross-site",
            "same-site",
        ):
            return HttpResponse.error("requests from other origins are rejected", HTTPStatus.FORBIDDEN)
        return None

    def _reply(self, answer: HttpResponse) -> None:
        self.send_response(answer.status)
        headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
