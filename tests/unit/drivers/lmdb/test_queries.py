"""Reading a local copy from another process: every committed state is seen whole, and no other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import CopyMovedError
from millstream.core.ports import ByteStores
from millstream.core.state.segments.log import Manifest, advanced
from millstream.drivers.lmdb.lmdb_copy import open_local_copy
from millstream.drivers.lmdb.queries import LmdbQueries

Content = dict[bytes, bytes]


def write(directory: str, orders: Connection[Any, Any]) -> None:
    """Do in another process what a task's worker does: park a micro-batch, and apply the one before."""
    copy = open_local_copy(directory)
    while (order := orders.recv()) is not None:
        name, *arguments = order
        copy.version()
        getattr(copy, name)(*arguments)
        copy.close_view()
        orders.send("done")


class Worker:
    """A task's worker in a process of its own: LMDB lets a process open a file only once."""

    def __init__(self, directory: Path) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._orders, theirs = spawned.Pipe()
        self._process = spawned.Process(target=write, args=(str(directory), theirs))
        self._process.start()

    def do(self, *order: Any) -> None:
        self._orders.send(order)
        assert self._orders.recv() == "done"

    def end(self) -> None:
        self._orders.send(None)
        self._process.join(30)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.end()


def content(stores: ByteStores) -> Content:
    return dict(stores.open("counts").scan(None, None))


def batches() -> Iterator[tuple[dict[bytes, bytes | None], Content]]:
    """Yield the changes of micro-batches, and what the store holds after each."""
    held: Content = {}
    for number in range(6):
        changes: dict[bytes, bytes | None] = {b"k%d" % key: b"%d" % number for key in range(number, 9, 2)}
        changes[b"k%d" % (number * 2 % 9)] = None
        held = {**held, **{key: value for key, value in changes.items() if value is not None}}
        held = {key: value for key, value in held.items() if changes.get(key, b"") is not None}
        yield changes, held


def test_each_committed_state_is_seen_before_and_after_it_is_applied(tmp_path: Path, worker: Worker) -> None:
    queries, manifest = LmdbQueries(str(tmp_path)), Manifest()
    before: Content = {}
    pending: tuple[dict[str, list[Any]], Any] | None = None
    for number, (changes, held) in enumerate(batches()):
        if pending is not None:
            worker.do("apply", *pending)
            assert content(queries.view(manifest)) == before  # the next micro-batch is at work
        manifest = advanced(manifest, f"token-{number}")
        pending = {"counts": list(changes.items())}, manifest.current
        worker.do("park", manifest.current, pending[0])
        assert content(queries.view(manifest)) == held
        reader = queries.view(manifest).open("counts")
        assert reader.approximate_count() == len(held)
        assert {key: reader.get(key) for key in changes} == {key: held.get(key) for key in changes}
        backwards = list(reader.scan(b"k2", b"k7", reverse=True))
        assert backwards == sorted(((k, v) for k, v in held.items() if b"k2" <= k < b"k7"), reverse=True)
        before = held
    queries.close()


def test_a_state_that_the_copy_does_not_have_is_not_made_up(tmp_path: Path, worker: Worker) -> None:
    queries, first = LmdbQueries(str(tmp_path)), advanced(Manifest(), "first")
    second = advanced(first, "second")
    with pytest.raises(CopyMovedError):
        queries.view(first)  # nothing was parked yet
    worker.do("park", first.current, {"counts": [(b"a", b"1")]})
    assert content(queries.view(first)) == {b"a": b"1"}
    with pytest.raises(CopyMovedError, match="went from"):
        queries.view(second)
    worker.do("apply", {"counts": [(b"a", b"1")]}, first.current)
    worker.do("apply", {"counts": [(b"a", b"2")]}, second.current)
    assert content(queries.view(second)) == {b"a": b"2"}
    with pytest.raises(CopyMovedError, match="went from"):
        queries.view(first)  # the copy is ahead
    other = advanced(advanced(Manifest(), "first"), "of another attempt")
    with pytest.raises(CopyMovedError, match="went from"):
        queries.view(other)
    worker.do("wipe")
    with pytest.raises(CopyMovedError):
        queries.view(second)
    queries.close()


def test_nothing_was_written_yet(tmp_path: Path) -> None:
    queries = LmdbQueries(str(tmp_path / "nowhere"))
    assert content(queries.view(Manifest())) == {}
    with pytest.raises(CopyMovedError, match="is not there yet"):
        queries.view(advanced(Manifest(), "first"))
