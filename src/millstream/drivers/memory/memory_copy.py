"""The local copy of a task's byte stores in the memory of the Python worker process. Implements ``LocalCopy``.

Spark's Python workers take turns, so each has its own copy, which lags behind by the micro-batches that other workers ran.
Files contain the changes of the latest versions (see ``millstream.drivers.directory``), from which a copy catches up without the log. A
new worker, or one that is further behind, restores from the log. Reads are as fast as a dict, but every worker keeps the whole
content in memory, so this engine is for small stores.

Queries in another process create a file that requests the content. The next micro-batch writes the content to a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millstream.core.model.errors import StoreError
from millstream.core.ports import DEFAULT_MEMORY_BYTES, RESTORING, ByteStores, StoreChange, Version
from millstream.core.state.memory import MemoryStores
from millstream.drivers.directory import MISSING, CopyDirectory, DirectoryCopy
from millstream.drivers.memory.content_file import PARKED_VERSIONS, is_wanted, write_content

_OPEN: dict[str, MemoryCopy] = {}


def open_local_copy(directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES, run: str = "") -> MemoryCopy:
    """Return this process's local copy for a directory.

    Args:
        run: Id of the application's run. Not used, because no content survives the process.
    """
    copy = _OPEN.get(directory)
    if copy is None:
        copy = _OPEN[directory] = MemoryCopy(directory, memory_bytes)
    copy.directory.prepare()
    return copy


class MemoryCopy(DirectoryCopy):
    """One dict per byte store. Only parked changes are on disk. Owned by the process, and used by one micro-batch at a time."""

    exclusive = False

    def __init__(self, directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        super().__init__(CopyDirectory(directory, PARKED_VERSIONS))
        self._memory_bytes = memory_bytes
        self._stores = MemoryStores()
        self._version: Version | None = None

    def version(self) -> Version | None:
        return self._version

    def why_empty(self) -> str:
        return f"{MISSING}: it is kept in memory, and this process is new"

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        self._version = RESTORING
        self._stores.apply(changes, dropped)
        self._version = version
        self._refuse_too_much()

    def wipe(self) -> None:
        self._stores = MemoryStores()
        self._version = None

    def names(self) -> frozenset[str]:
        return self._stores.names()

    def open_view(self) -> ByteStores:
        """Return the content. It does not change before :meth:`close_view`."""
        return self._stores

    def close_view(self) -> None:
        """Write the content to a file if a query has requested it."""
        if self._version not in (None, RESTORING) and is_wanted(self.directory):
            stores = {name: list(self._stores.open(name).scan(None, None)) for name in self._stores.names()}
            write_content(self.directory, self._version, stores)

    def size(self) -> int:
        return self._stores.size()

    def _refuse_too_much(self) -> None:
        taken = sum(copy.size() for copy in {id(c): c for c in (*_OPEN.values(), self)}.values())
        if taken > self._memory_bytes:
            raise StoreError(
                f"the stores that this worker keeps in memory take about {taken >> 20} MiB, more than the "
                f"{self._memory_bytes >> 20} MiB that worker_memory_bytes allows. Nothing is lost: start again with another engine "
                '(store_engine="lmdb" or "rocksdb", or engine=... on the store), or with a larger worker_memory_bytes'
            )
