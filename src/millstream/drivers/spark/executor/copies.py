"""The local copies of one task: one copy per engine of its stores.

Each copy has its own directory and version. It is restored independently, from the manifest restricted to its stores. The task
sees the copies as a single set of byte stores.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from millstream.core.ports import (
    ByteReader,
    ByteStores,
    LocalCopy,
    OpenLocalCopy,
    Segments,
    Version,
    store_of,
)
from millstream.core.state.segments.log import Manifest
from millstream.drivers.directory import CopyDirectory
from millstream.drivers.private import make_private
from millstream.drivers.spark.executor.statelog import StateLog


def directory_of_global(store: str) -> str:
    """Return the directory of a host's copy of a global store, beside the directories of tasks. No task id has this form."""
    return f"global/{store}"


def remove_all_but(kept: Container[str], directory: str | Path) -> None:
    """Remove the copies of engines that are no longer used from a directory of copies."""
    for name in os.listdir(directory):
        if name not in kept:
            shutil.rmtree(f"{directory}/{name}", ignore_errors=True)


@dataclass(frozen=True)
class CopiesSpec:
    """Location and settings of local copies. Pickled with cloudpickle.

    Attributes:
        directory: Parent directory of the local copies on each host. A copy is in ``<task>/<engine>``.
        memory_bytes: Memory for the local copies of a Python worker, shared by all engines.
    """

    directory: str
    openers: Mapping[str, OpenLocalCopy]
    engines: Mapping[str, str]
    memory_bytes: int
    run: str = ""

    @property
    def memory_per_engine(self) -> int:
        return self.memory_bytes // max(len(set(self.engines.values())), 1)

    def open_copy(self, engine: str, directory: str) -> LocalCopy:
        """Open the local copy of an engine.

        The application's directory becomes private: on a host that only has executors, nothing else creates it.

        Raises:
            StoreError: If the directory cannot be written.
        """
        try:
            make_private(Path(self.directory).parent)
        except OSError as error:
            raise CopyDirectory(directory).unusable_error(error) from error
        return self.openers[engine](directory, self.memory_per_engine, self.run)


class TaskCopies:
    """The local copies of a task in a micro-batch. Implements ``ByteStores`` while a view is open."""

    def __init__(self, spec: CopiesSpec, task: str, stores: Iterable[str]) -> None:
        self._directory = f"{spec.directory}/{task}"
        self._engines = {store: spec.engines[store] for store in stores}
        self._copies = {
            engine: spec.open_copy(engine, f"{self._directory}/{engine}")
            for engine in sorted(set(self._engines.values()))
        }
        self._views: dict[str, ByteStores] = {}

    def restore(self, log: StateLog, manifest: Manifest) -> int:
        """Restore every copy to the committed manifest. Return the number of changes fetched from the log."""
        self.remove_unused()
        return sum(
            log.restore(manifest.only(self._stores(engine)), copy) for engine, copy in self._copies.items()
        )

    def open_view(self) -> ByteStores:
        self._views = {engine: copy.open_view() for engine, copy in self._copies.items()}
        return self

    def open(self, name: str) -> ByteReader:
        return self._views[self._engines[store_of(name)]].open(name)

    def close_view(self) -> None:
        self._views = {}
        with ExitStack() as closing:
            for copy in self._copies.values():
                closing.callback(copy.close_view)

    def names(self) -> frozenset[str]:
        return frozenset(name for copy in self._copies.values() for name in copy.names())

    def park(self, version: Version, changes: Segments, dropped: Collection[str] = ()) -> None:
        """Park the changes of a micro-batch beside the local copies. Every copy receives the version."""
        for engine, copy in self._copies.items():
            own = {
                store: parts for store, parts in changes.items() if self._engines[store_of(store)] == engine
            }
            copy.park(version, own, [store for store in dropped if self._engines[store_of(store)] == engine])

    def _stores(self, engine: str) -> Collection[str]:
        return {store for store, used in self._engines.items() if used == engine}

    def remove_unused(self) -> None:
        if os.path.isdir(self._directory):
            remove_all_but(self._copies, self._directory)
