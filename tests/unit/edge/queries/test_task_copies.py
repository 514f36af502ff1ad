"""A task's local copy shows exactly the state of a report, whatever was shown before."""

from __future__ import annotations

from collections.abc import Mapping

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


class Versions:
    """A copy that has some versions of a store. As with LMDB, opening a view ends the view before."""

    def __init__(self, by_version: Mapping[int, int]) -> None:
        self.views = 0
        self._by_version = by_version
        self._open = MemoryStores()

    def view(self, known: Manifest) -> ByteStores:
        self.release()
        if known.version not in self._by_version:
            raise CopyMovedError("the copy does not have this version")
        self.views += 1
        self._open = MemoryStores()
        count = self._by_version[known.version].to_bytes(8, "big")
        self._open.apply({"counts": [(b"tea", count)], "names": [(b"tea", b"Tea")]})
        return self._open

    def newest(self) -> Manifest:
        raise CopyMovedError("not a global store")

    def release(self) -> None:
        self._open.apply({}, ["counts", "names"])

    def close(self) -> None:
        self.release()


def report(version: int) -> TaskReport:
    return TaskReport("0_0", state=StateReport(version, (f"token-{version}",), {}))


def test_a_state_is_opened_once_for_all_its_stores() -> None:
    reader = Versions({1: 10, 2: 20})
    copy, first, second = TaskCopy(reader), report(1), report(2)
    for _ in range(3):
        assert copy.store(COUNTS, first).get("tea") == 10
        assert copy.store(NAMES, first).get("tea") == "Tea"
    assert reader.views == 1
    assert copy.store(COUNTS, second).get("tea") == 20
    assert copy.store(COUNTS, first).get("tea") == 10  # a question that began before the last commit
    assert reader.views == 3
    copy.release()
    assert copy.store(COUNTS, first).get("tea") == 10


def test_a_state_that_cannot_be_opened_ends_the_view_of_the_state_before() -> None:
    copy, first = TaskCopy(Versions({1: 10})), report(1)
    assert copy.store(COUNTS, first).get("tea") == 10
    with pytest.raises(CopyMovedError):
        copy.store(COUNTS, report(2))
    assert copy.store(COUNTS, first).get("tea") == 10
