"""Reading a local copy from another process: it shows committed states, each of them completely, and no others."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import CopyMovedError
from millstream.core.ports import ByteStores, Version
from millstream.core.queries.copy_reader import CopyReader
from millstream.core.state.segments.log import Manifest, advanced
from millstream.drivers.memory.content_file import PARKED_VERSIONS
from millstream.edge.queries.copy_readers import open_reader

from .engines import COPIES
from .state import segments_by_store

Content = dict[bytes, bytes]


def write(engine: str, directory: str, orders: Connection[Any, Any]) -> None:
    """Do the work of a task's worker in another process: park a micro-batch, and apply the previous one."""
    while (order := orders.recv()) is not None:
        name, *arguments = order
        copy = COPIES[engine].open(directory)
        copy.version()
        getattr(copy, name)(*arguments)
        copy.close_view()
        orders.send("done")


class Worker:
    """A task's worker in a separate process: LMDB lets a process open a file only once."""

    def __init__(self, engine: str, directory: str) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._orders, worker_end = spawned.Pipe()
        self._process = spawned.Process(target=write, args=(engine, directory, worker_end))
        self._process.start()

    def do(self, *order: Any) -> None:
        self._orders.send(order)
        assert self._orders.recv() == "done"

    def end(self) -> None:
        self._orders.send(None)
        self._process.join(30)


@pytest.fixture(params=sorted(COPIES))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def worker(engine: str, tmp_path: Path) -> Iterator[Worker]:
    task_worker = Worker(engine, f"{tmp_path}/0_0/{engine}")
    yield task_worker
    task_worker.end()


@pytest.fixture
def queries(engine: str, tmp_path: Path) -> CopyReader:
    return open_reader(str(tmp_path), "0_0", engine)


def content(stores: ByteStores) -> Content:
    return dict(stores.open("counts").scan(None, None))


def batches() -> Iterator[tuple[dict[bytes, bytes | None], Content]]:
    """Yield the changes of micro-batches, and the content of the store after each."""
    stored: Content = {}
    for number in range(6):
        changes: dict[bytes, bytes | None] = {b"k%d" % key: b"%d" % number for key in range(number, 9, 2)}
        changes[b"k%d" % (number * 2 % 9)] = None
        stored = {**stored, **{key: value for key, value in changes.items() if value is not None}}
        stored = {key: value for key, value in stored.items() if changes.get(key, b"") is not None}
        yield changes, stored


def test_each_committed_state_is_seen_before_and_after_it_is_applied(
    engine: str, queries: CopyReader, worker: Worker
) -> None:
    manifest = Manifest()
    before: Content = {}
    pending: tuple[dict[str, list[Any]], Any] | None = None
    for number, (changes, stored) in enumerate(batches()):
        if pending is not None:
            worker.do("apply", *pending)
            assert content(queries.view(manifest)) == before  # the next micro-batch is running
        manifest = advanced(manifest, f"token-{number}")
        pending = {"counts": list(changes.items())}, manifest.current
        worker.do("park", manifest.current, segments_by_store(pending[0]))
        assert content(queries.view(manifest)) == stored
        reader = queries.view(manifest).open("counts")
        if COPIES[engine].counts:
            assert reader.approximate_count() == len(stored)
        assert {key: reader.get(key) for key in changes} == {key: stored.get(key) for key in changes}
        backwards = list(reader.scan(b"k2", b"k7", reverse=True))
        assert backwards == sorted(((k, v) for k, v in stored.items() if b"k2" <= k < b"k7"), reverse=True)
        before = stored
    queries.close()


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb"], indirect=True)
def test_a_state_that_the_copy_does_not_have_is_an_error(queries: CopyReader, worker: Worker) -> None:
    first = advanced(Manifest(), "first")
    second = advanced(first, "second")
    with pytest.raises(CopyMovedError):
        queries.view(first)  # nothing was parked yet
    worker.do("park", first.current, segments_by_store({"counts": [(b"a", b"1")]}))
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
    queries.close()
    worker.do("wipe")
    with pytest.raises(CopyMovedError):
        queries.view(second)
    queries.close()


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb"], indirect=True)
def test_the_newest_content_does_not_change_until_it_is_requested_again(
    queries: CopyReader, worker: Worker
) -> None:
    with pytest.raises(CopyMovedError):
        queries.newest()
    worker.do("apply", {"counts": [(b"a", b"1")]}, Version(7, "seven"))
    first = queries.newest()
    assert first.current == Version(7, "seven")
    worker.do("apply", {"counts": [(b"a", b"2")]}, Version(9, "nine"))
    assert content(queries.view(first)) == {b"a": b"1"}
    second = queries.newest()
    assert (second.version, content(queries.view(second))) == (9, {b"a": b"2"})
    queries.close()
    worker.do("wipe")
    with pytest.raises(CopyMovedError):
        queries.newest()
    queries.close()


def test_a_copy_that_was_never_written_is_empty(queries: CopyReader) -> None:
    assert content(queries.view(Manifest())) == {}
    with pytest.raises(CopyMovedError, match=r"does not exist yet|went from"):
        queries.view(advanced(Manifest(), "first"))


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_content_in_memory_is_written_by_the_next_micro_batch(queries: CopyReader, worker: Worker) -> None:
    manifest = Manifest()
    for number in range(2 * PARKED_VERSIONS):
        if number:
            worker.do("apply", {"counts": [(b"k%d" % (number - 1), b"1")]}, manifest.current)
        manifest = advanced(manifest, f"token-{number}")
        worker.do("park", manifest.current, segments_by_store({"counts": [(b"k%d" % number, b"1")]}))
    expected = {b"k%d" % number: b"1" for number in range(2 * PARKED_VERSIONS)}
    with pytest.raises(CopyMovedError):
        queries.view(manifest)  # not all changes are parked any more
    worker.do("names")
    before = queries.view(manifest)
    assert content(before) == expected
    assert queries.view(manifest) is before
    worker.do("apply", {"counts": [(b"k%d" % number, b"1")]}, manifest.current)
    manifest = advanced(manifest, "newest")
    worker.do("park", manifest.current, segments_by_store({"counts": [(b"k0", None)]}))
    assert content(queries.view(manifest)) == {key: value for key, value in expected.items() if key != b"k0"}
    assert queries.view(manifest) is not before
