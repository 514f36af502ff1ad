"""The engines of local copies, for tests that hold for each of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.core.ports import LocalCopy
from millstream.drivers.lmdb import lmdb_copy as lmdb
from millstream.drivers.memory import memory_copy as memory
from millstream.drivers.rocksdb import rocksdb_copy as rocksdb

MEMORY_BYTES = 16 << 20


@dataclass(frozen=True)
class Engine:
    """An engine of local copies.

    Attributes:
        name: Its name in the settings.
        opener: Opens a copy.
        outlives: Whether a copy outlives the process that created it.
        counts: Whether ``approximate_count`` is exact.
        opened: The copies that this process has open.
    """

    name: str
    opener: Callable[[str, int], LocalCopy]
    outlives: bool
    counts: bool
    opened: dict[str, Any]

    def open(self, directory: str, memory_bytes: int = MEMORY_BYTES) -> LocalCopy:
        return self.opener(directory, memory_bytes)

    def die(self, directory: str) -> None:
        """Simulate the end of the process that has opened the copy."""
        copy = self.opened.pop(directory, None)
        if copy is not None:
            copy.close_view()
            if self.name == "lmdb" and copy._env is not None:
                copy._env.close()

    def discard(self, directory: str) -> None:
        """Close a copy and delete its directory: a test run creates thousands of copies."""
        self.die(directory)
        shutil.rmtree(directory, ignore_errors=True)


COPIES = {
    engine.name: engine
    for engine in (
        Engine("lmdb", lmdb.open_local_copy, outlives=True, counts=True, opened=lmdb._OPEN),
        Engine("rocksdb", rocksdb.open_local_copy, outlives=True, counts=False, opened=rocksdb._OPEN),
        Engine("memory", memory.open_local_copy, outlives=False, counts=True, opened=memory._OPEN),
    )
}
