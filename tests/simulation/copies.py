"""A local copy whose files outlive the process that writes them, as LMDB's do.

The engines have their own tests. This model is about when a copy is written and by which process: one transaction is atomic,
several transactions are not, and each attempt on a host finds the files of earlier attempts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from millstream.core.ports import ByteStores, ParkedChanges, Segments, StoreChange, Version
from millstream.core.state.memory import MemoryStores
from millstream.drivers.directory import MISSING, CopyDirectory, in_parts, on_its_way
from simulation.scheduler import Scheduler

LAST_PART = "writes the last part of the changes to its copy"
_PARKED_VERSIONS = 4
_CHANGE_BYTES = 64
_TRANSACTION_BYTES = 2 * _CHANGE_BYTES


@dataclass
class Files:
    """The files of a copy on the disk of a host.

    Attributes:
        content: Byte stores, keys and values.
        version: The version of the content.
    """

    content: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    version: Version | None = None


class DiskCopy:
    """The copy as seen by one process. Implements ``LocalCopy``."""

    exclusive = False

    def __init__(self, directory: str, disk: dict[str, Files], scheduler: Scheduler) -> None:
        self.directory = CopyDirectory(directory, _PARKED_VERSIONS)
        self.directory.prepare()
        self._disk = disk
        self._files = disk.setdefault(directory, Files())
        self._scheduler = scheduler
        self._seen: tuple[Version | None, ...] = ()

    def version(self) -> Version | None:
        self._scheduler.sometimes("looks at its copy", 0.2)
        self._seen = (self._files.version,)
        return self._files.version

    def why_empty(self) -> str:
        return MISSING

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        *before, last = in_parts(changes, _TRANSACTION_BYTES, _CHANGE_BYTES)
        unfinished = on_its_way(self._files.version, version) if before else version
        for part in before:
            self._scheduler.step("writes a part of the changes to its copy")
            self._write(part, unfinished, ())
        self._scheduler.step(LAST_PART if before else "brings its copy to the next version")
        self._write(last, version, dropped)

    def check(self, changes: Mapping[str, Iterable[StoreChange]]) -> None:
        """Refuse nothing."""

    def wipe(self) -> None:
        self._scheduler.step("wipes its copy")
        # A process that has the old files open keeps them, like a deleted file of LMDB.
        self._files = self._disk[str(self.directory.path)] = Files()
        self._seen = (None,)
        self.directory.clear(MISSING)

    def names(self) -> frozenset[str]:
        return frozenset(self._files.content)

    def open_view(self) -> ByteStores:
        self._check()
        view = MemoryStores()
        view.apply({store: list(content.items()) for store, content in self._files.content.items()}, ())
        return view

    def close_view(self) -> None:
        """Forget which version was seen; a view is independent of the files."""
        self._seen = ()

    def park(self, version: Version, changes: Segments, dropped: Collection[str] = ()) -> None:
        self._scheduler.step("parks its changes")
        self.directory.park(version, changes, dropped)

    def parked(self, version: Version) -> ParkedChanges | None:
        return self.directory.parked(version)

    def _write(
        self, changes: Mapping[str, list[StoreChange]], version: Version, dropped: Collection[str]
    ) -> None:
        self._check()
        for name in dropped:
            self._files.content.pop(name, None)
        for store, items in changes.items():
            content = self._files.content.setdefault(store, {})
            for key, value in items:
                if value is None:
                    content.pop(key, None)
                else:
                    content[key] = value
        self._files.version = version
        if self._seen:
            self._seen = (version,)

    def _check(self) -> None:
        if self._seen and self._seen[0] != self._files.version:
            raise self.directory.moved(self._seen[0], self._files.version)
