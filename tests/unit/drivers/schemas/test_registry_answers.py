"""Answers of a schema registry: which are errors of the record, and which are errors of the registry or its address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SerdeError, UnavailableError
from millstream.drivers.schemas import registry_serde


@dataclass
class Order:
    id: str
    cents: int


DATA = b"\x00\x00\x00\x00\x07\x02a\x02"


class FakeRegistry(BaseHTTPRequestHandler):
    """Returns the same answer to every request."""

    answer: tuple[int, bytes] = (200, b"{}")

    def do_GET(self) -> None:
        status, content = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(registry_serde, "_PATIENCE_S", 0)
    monkeypatch.setattr(registry_serde, "_PAUSE_S", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeRegistry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("register", ["auto", "check", "never"])
@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>log in</html>"),
        (200, b""),
        (200, b"[]"),
        (200, b"null"),
        (200, b"{}"),
        (302, b""),
        (404, b"<html>nothing here</html>"),
        (404, b'{"error_code":404,"message":"HTTP 404 Not Found"}'),
    ],
)
def test_an_invalid_answer_of_a_registry_is_not_an_error_of_the_record(
    address: str, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes], register: str
) -> None:
    monkeypatch.setattr(FakeRegistry, "answer", answer)
    orders = ms.serdes.avro(Order, registry={"url": address, "max.retries": 0}, register=register)
    for use in (lambda: orders.serialize(Order("a", 1)), lambda: orders.deserialize(DATA)):
        with pytest.raises(
            UnavailableError,
            match="check that registry= has the address and the settings of a schema registry",
        ):
            use()
    # the invalid answer is not cached
    schema = b'{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"cents","type":"long"}]}'
    text = schema.replace(b'"', b'\\"')
    monkeypatch.setattr(FakeRegistry, "answer", (200, b'{"id":7,"version":1,"schema":"%s"}' % text))
    assert orders.serialize(Order("a", 1)) == DATA
    assert orders.deserialize(DATA) == Order("a", 1)


def no_token(config: dict[str, str]) -> dict[str, str]:
    raise RuntimeError("the issuer of tokens is down")


def test_a_failure_to_get_a_token_is_not_an_error_of_the_record(address: str) -> None:
    settings = {
        "url": address,
        "bearer.auth.credentials.source": "CUSTOM",
        "bearer.auth.custom.provider.function": no_token,
        "bearer.auth.custom.provider.config": {},
    }
    with pytest.raises(UnavailableError, match="RuntimeError: the issuer of tokens is down"):
        ms.serdes.avro(Order, registry=settings).serialize(Order("a", 1))


@pytest.mark.parametrize(
    "answer",
    [
        (404, b'{"error_code":40403,"message":"Schema 7 not found"}'),
        (409, b'{"error_code":409,"message":"Schema being registered is incompatible"}'),
        (409, b'{"message":"incompatible"}'),
        (422, b'{"error_code":42201,"message":"Invalid schema"}'),
    ],
)
def test_an_answer_of_a_registry_about_a_schema_is_an_error_of_the_record(
    address: str, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes]
) -> None:
    monkeypatch.setattr(FakeRegistry, "answer", answer)
    orders = ms.serdes.avro(Order, registry={"url": address, "max.retries": 0})
    for use in (lambda: orders.serialize(Order("a", 1)), lambda: orders.deserialize(DATA)):
        with pytest.raises(SerdeError):
            use()
