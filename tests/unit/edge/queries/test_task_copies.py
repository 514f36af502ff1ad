"""A task's local copy shows exactly the state of a report, also after other states were shown."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event, Thread

import pytest

import millstream as ms
from millstream.core.model.errors import CopyMovedError
from millstream.core.ports import ByteStores
from millstream.core.runtime.task_report import StateReport, TaskReport
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import Manifest
from millstream.edge.queries.task_copies import TaskCopy

COUNTS = ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64)
NAMES = ms.stores.key_value("names", ms.serdes.string, ms.serdes.string)


class FakeCopyReader:
    """A reader of a copy with some versions of a store. As with LMDB, opening a view ends the previous view."""

    def __init__(self, by_version: Mapping[int, int]) -> None:
        self.views = 0
        self.is_open = False
        self._by_version = by_version
        self._open = MemoryStores()

    def view(self, known: Manifest) -> ByteStores:
        self.release()
        if known.version not in self._by_version:
            raise CopyMovedError("the copy does not have this version")
        self.views += 1
        self.is_open = True
        self._open = MemoryStores()
        count = self._by_version[known.version].to_bytes(8, "big")
        self._open.apply({"counts": [(b"tea", count)], "names": [(b"tea", b"Tea")]})
        return self._open

    def newest(self) -> Manifest:
        raise CopyMovedError("not a global store")

    def release(self) -> None:
        self.is_open = False
        self._open.apply({}, ["counts", "names"])

    def close(self) -> None:
        self.release()


def report(version: int) -> TaskReport:
    return TaskReport("0_0", state=StateReport(version, (f"token-{version}",), {}))


def test_a_state_is_opened_once_for_all_its_stores() -> None:
    reader = FakeCopyReader({1: 10, 2: 20})
    copy, first, second = TaskCopy(reader), report(1), report(2)
    for _ in range(3):
        assert copy.store(COUNTS, first).get("tea") == 10
        assert copy.store(NAMES, first).get("tea") == "Tea"
    assert reader.views == 1
    assert copy.store(COUNTS, second).get("tea") == 20
    assert copy.store(COUNTS, first).get("tea") == 10  # a query that began before the last commit
    assert reader.views == 3
    copy.release()
    assert copy.store(COUNTS, first).get("tea") == 10


def test_the_previous_state_can_be_opened_again_after_one_that_cannot_be_opened() -> None:
    copy, first = TaskCopy(FakeCopyReader({1: 10})), report(1)
    assert copy.store(COUNTS, first).get("tea") == 10
    with pytest.raises(CopyMovedError):
        copy.store(COUNTS, report(2))
    assert copy.store(COUNTS, first).get("tea") == 10


def test_a_commit_does_not_wait_for_a_query_whose_view_is_released_at_its_end() -> None:
    reader = FakeCopyReader({1: 10})
    copy = TaskCopy(reader)
    with copy:
        store = copy.store(COUNTS, report(1))
        copy.release()  # would never return if it waited
        assert store.get("tea") == 10
        assert reader.is_open
    assert not reader.is_open


def test_a_view_that_a_waiting_query_opens_after_a_commit_is_released() -> None:
    reader = FakeCopyReader({1: 10, 2: 20})
    copy, waits, has_answered = TaskCopy(reader), Event(), Event()

    def ask() -> None:
        waits.set()
        with copy:
            assert copy.store(COUNTS, report(2)).get("tea") == 20
        has_answered.set()

    with copy:
        copy.store(COUNTS, report(1))
        Thread(target=ask).start()
        assert waits.wait(10)
        copy.release()
    assert has_answered.wait(10)
    copy.release()  # the next commit
    assert not reader.is_open


def test_a_view_is_released_when_a_commit_and_the_end_of_a_query_coincide() -> None:
    reader = FakeCopyReader({1: 10})
    copy = TaskCopy(reader)

    def ask(has_opened: Event) -> None:
        with copy:
            copy.store(COUNTS, report(1))
            has_opened.set()

    for _ in range(500):
        has_opened = Event()
        query = Thread(target=ask, args=(has_opened,))
        query.start()
        assert has_opened.wait(10)
        copy.release()
        query.join()
        assert not reader.is_open
