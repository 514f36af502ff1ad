"""Reading copies over a network connection: reads return the rows of the copy, and a client needs the key."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from ssl import SSLError

import pytest

from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.ports import ByteStores
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import Manifest
from millstream.drivers.remote_stores import host_listener
from millstream.drivers.remote_stores.host_listener import HostListener
from millstream.drivers.remote_stores.remote_copy import RemoteCopy
from millstream.drivers.remote_stores.secure_channel import Channel, connect
from millstream.drivers.remote_stores.store_server import CopyRequest, serve

KEY = b"k" * 32
ROWS = [(b"%05d" % n, b"v" * (n % 7)) for n in range(10_000)]
KNOWN = Manifest(3, ("a", "b", "c"))


class Copy:
    """A copy in memory, at one version. Implements ``CopyReader``."""

    def __init__(self) -> None:
        self._stores = MemoryStores()
        self._stores.apply({"counts": ROWS})

    def view(self, known: Manifest) -> ByteStores:
        if known.version > KNOWN.version:
            raise CopyMovedError("the copy is behind")
        if known != KNOWN:
            raise StoreError("the copy is damaged")
        return self._stores

    def newest(self) -> Manifest:
        return KNOWN

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def channel() -> Iterator[Channel]:
    """Yield the application's channel to a host with one copy."""
    with closing(HostListener("127.0.0.1", KEY)) as listener:
        host = connect(("127.0.0.1", listener.port), KEY)
        host.send("host-1")
        server = threading.Thread(target=serve, args=(host, lambda task, engine: Copy(), lambda: True))
        server.start()
        listener.await_hosts(["host-1"], 30)
        host_channel = listener.channel("host-1")
        assert host_channel is not None
        yield host_channel
        listener.close()
        server.join(10)
        assert not server.is_alive()


def remote(channel: Channel) -> RemoteCopy:
    def ask(request: CopyRequest) -> tuple[str, object]:
        kind, value = channel.ask(tuple(request))
        return kind, value

    return RemoteCopy(ask, "0_1", "lmdb")


def test_the_newest_version_is_read_from_the_host(channel: Channel) -> None:
    newest = remote(channel).newest()
    assert newest.current == KNOWN.current


def test_remote_reads_return_the_rows_of_the_copy(channel: Channel) -> None:
    store = remote(channel).view(KNOWN).open("counts")
    assert store.get(b"00003") == b"vvv"
    assert store.get(b"x") is None
    assert store.approximate_count() == len(ROWS)
    for low, high in ((None, None), (b"00010", b"09000"), (b"00063", b"00064"), (b"x", None)):
        expected = [row for row in ROWS if (low is None or row[0] >= low) and (high is None or row[0] < high)]
        assert list(store.scan(low, high)) == expected
        assert list(store.scan(low, high, reverse=True)) == expected[::-1]
    assert list(remote(channel).view(KNOWN).open("other").scan(None, None)) == []


def test_errors_of_the_copy_reach_the_application(channel: Channel) -> None:
    reader = remote(channel)
    with pytest.raises(CopyMovedError, match="behind"):
        reader.view(Manifest(4, ("a", "b", "c", "d"))).open("counts").get(b"a")
    with pytest.raises(StoreError, match="damaged"):
        reader.view(Manifest(3, ("x", "y", "z"))).open("counts").get(b"a")
    assert reader.view(KNOWN).open("counts").get(b"00001") == b"v"


def test_the_answer_to_an_interrupted_request_is_not_returned_for_the_next_request(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = remote(channel).view(KNOWN).open("counts")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(channel, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            counts.get(b"00001")
    with pytest.raises(OSError, match="Bad file descriptor"):  # the application opens another channel
        counts.get(b"00006")


def test_a_view_is_the_same_object_until_another_state_is_committed(channel: Channel) -> None:
    reader = remote(channel)
    assert reader.view(KNOWN) is reader.view(KNOWN)
    assert reader.view(KNOWN) is not reader.view(Manifest(4, ("b", "c", "d")))


def test_a_client_without_the_key_gets_no_channel(caplog: pytest.LogCaptureFixture) -> None:
    with closing(HostListener("127.0.0.1", KEY)) as listener:
        address = "127.0.0.1", listener.port
        with pytest.raises(OSError, match="does not have the key"):
            connect(address, b"x" * 32)
        with socket.create_connection(address) as plain, suppress(OSError):
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.recv(100)
        while len(caplog.records) < 2:
            threading.Event().wait(0.01)
        assert listener.hosts() == frozenset()


def test_the_number_of_threads_for_unauthenticated_connections_is_limited() -> None:
    with closing(HostListener("127.0.0.1", KEY)) as listener, ExitStack() as silent:
        before = threading.active_count()
        for _ in range(3 * host_listener._MOST_UNPROVEN):
            silent.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
        with pytest.raises((ConnectionError, SSLError)):
            connect(("127.0.0.1", listener.port), KEY)
        assert threading.active_count() <= before + host_listener._MOST_UNPROVEN


def test_network_traffic_is_encrypted() -> None:
    """A man in the middle who relays the traffic cannot read it."""
    seen = bytearray()
    with (
        closing(HostListener("127.0.0.1", KEY)) as listener,
        socket.create_server(("127.0.0.1", 0)) as middle,
    ):
        threading.Thread(target=_relay, args=(middle, listener.port, seen), daemon=True).start()
        host = connect(middle.getsockname(), KEY)
        host.send("host-with-a-name")
        listener.await_hosts(["host-with-a-name"], 30)
        assert listener.hosts() == {"host-with-a-name"}
        host.close()
    assert listener.hosts() == frozenset()
    assert len(seen) > 100
    assert b"host-with-a-name" not in seen


def _relay(middle: socket.socket, port: int, seen: bytearray) -> None:
    near, _ = middle.accept()
    far = socket.create_connection(("127.0.0.1", port))
    for source, target in ((near, far), (far, near)):
        threading.Thread(target=partial(_copy, source, target, seen), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, seen: bytearray) -> None:
    try:
        while data := source.recv(65_536):
            seen.extend(data)
            target.sendall(data)
    except OSError:
        pass
    finally:
        target.close()
