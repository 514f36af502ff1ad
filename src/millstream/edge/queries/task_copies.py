"""The local copies that queries read: directly on this host, and through a process on each other host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from millstream.core.engine.step_outcome import Snapshot
from millstream.core.model.errors import CopyMovedError
from millstream.core.ports import ByteStores
from millstream.core.queries.copy_reader import CopyReader
from millstream.core.runtime.task_report import StateReport, TaskReport
from millstream.core.state.contract import Alone
from millstream.core.state.global_copy import progress_of
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.topology.stores import SlicedSpec, StoreSpec
from millstream.drivers.spark.executor.copies import CopiesSpec, directory_of_global
from millstream.drivers.spark.executor.snapshots import snapshot_from_json
from millstream.edge.queries.copy_readers import open_reader
from millstream.edge.queries.store_hosts import StoreHosts


class OpenGlobalStore(NamedTuple):
    """A global store with the newest content of a host's copy.

    Attributes:
        positions: By partition of its topic, the first offset that the content does not include.
        identity: Topic and types of the copied records.
    """

    store: Any
    positions: Mapping[int, int]
    identity: str


class TaskCopy:
    """The local copy of a task or a global store, with the stores that are open on its newest view.

    A question uses them in a ``with`` statement, as only one thread may at a time. A commit does not wait for it: the view that the
    commit ends is released when the question leaves.
    """

    def __init__(self, reader: CopyReader) -> None:
        self._lock = threading.Lock()
        self._reader = reader
        self._closed = False
        self._view_has_ended = False
        """Whether a state has been committed since the view was opened, and the view is not released yet."""
        self._report: TaskReport | None = None
        self._view: ByteStores = MemoryStores()
        self._stores: dict[str, Any] = {}
        self._global: tuple[int, OpenGlobalStore] | None = None

    def store(self, spec: StoreSpec, report: TaskReport) -> Any:
        """Return a store at the state in a report.

        Raises:
            CopyMovedError: If the report lacks the state of the store, or the copy does not have this state.
        """
        if report is not self._report:
            self._show(report)
        store = self._stores.get(spec.name)
        if store is None:
            memory = _state_of(report).memory.get(spec.name)
            if memory is None and isinstance(spec, SlicedSpec):
                raise CopyMovedError(
                    f"task {report.task} has not reported the slices of store {spec.name!r} yet"
                )
            surroundings = Alone(report.stream_time_ms)
            store = self._stores[spec.name] = open_store(spec, self._view, surroundings, memory or {})
        return store

    def _show(self, report: TaskReport) -> None:
        """Open a view of the state in a report. Opening it closes the view before, even if it fails."""
        self._forget()
        self._view = self._open_reader().view(_state_of(report).history_manifest)
        self._report = report

    def _forget(self) -> None:
        self._report, self._stores, self._global = None, {}, None

    def global_store(self, spec: StoreSpec, batch: int) -> OpenGlobalStore:
        """Return a global store with the newest content, looked up once per micro-batch.

        Raises:
            CopyMovedError: If the copy is being filled, or cannot currently be reached.
        """
        if self._global is None or self._global[0] != batch:
            self._global = batch, self._open_global_store(spec)
        return self._global[1]

    def forget_global(self) -> None:
        """Look up the newest content again for the next question."""
        self._global = None

    def _open_global_store(self, spec: StoreSpec) -> OpenGlobalStore:
        reader = self._open_reader()
        known = reader.newest()
        view = reader.view(known)
        progress = progress_of(spec.name, known.current, view)
        if progress is None:
            raise CopyMovedError(f"the copy of global store {spec.name!r} is being filled")
        snapshot = snapshot_from_json(progress.remembered or None) or Snapshot()
        memory = snapshot.stores.get(spec.name, {})
        store = open_store(spec, view, Alone(snapshot.stream_time_ms), memory)
        return OpenGlobalStore(store, progress.positions, progress.identity)

    def release(self) -> None:
        """Release the view, now or when the question that uses it leaves. Returns at once."""
        self._view_has_ended = True
        self._release_ended_view()

    def _release_ended_view(self) -> None:
        """Release the view if it has ended, unless another thread uses it: that thread calls this method when it leaves.

        Whoever sets ``_view_has_ended`` or gives up the lock looks afterwards, so no view stays open.
        """
        while self._view_has_ended and self._lock.acquire(blocking=False):
            try:
                self._view_has_ended = False
                self._forget()
                self._reader.release()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the copy. Waits for the question that uses it, because its files must be closed when the next run opens them."""
        with self:
            self._forget()
            self._closed = True
            self._reader.close()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.release()
        self._release_ended_view()

    def _open_reader(self) -> CopyReader:
        """Return the reader. A closed reader would open its files again, and nothing would close them."""
        if self._closed:
            raise CopyMovedError("the local copy has been closed")
        return self._reader


def _state_of(report: TaskReport) -> StateReport:
    if report.state is None:
        raise CopyMovedError(f"task {report.task} has not reported its state yet")
    return report.state


class _CopyId(NamedTuple):
    directory: str
    engine: str


class Copies:
    """The local copies that queries have opened. Thread-safe."""

    def __init__(self, spec: Callable[[], CopiesSpec], hosts: StoreHosts) -> None:
        self._spec = spec
        self._hosts = hosts
        self._host = socket.gethostname()
        self._open: dict[_CopyId, tuple[str, TaskCopy]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def of_task(self, store: str, report: TaskReport) -> TaskCopy:
        return self._copy_in(report.task, store, report)

    def of_global(self, store: str, report: TaskReport) -> TaskCopy:
        return self._copy_in(directory_of_global(store), store, report)

    def engine_of(self, store: str) -> str:
        return self._spec().engines[store]

    def release_views(self) -> None:
        """Release the views of the previous micro-batch on this host, without waiting for questions or other hosts."""
        with self._lock:
            own = [copy for host, copy in self._open.values() if host == self._host]
        for copy in own:
            copy.release()

    def close(self) -> None:
        self._hosts.close()
        with self._lock:
            self._closed = True
            copies = [copy for _, copy in self._open.values()]
            self._open.clear()
        for copy in copies:
            copy.close()

    def _copy_in(self, directory: str, store: str, report: TaskReport) -> TaskCopy:
        host = report.executor.partition("/")[0] or self._host
        copy = _CopyId(directory, self.engine_of(store))
        with self._lock:
            if self._closed:
                raise CopyMovedError("the local copies have been closed")
            before = self._open.get(copy)
            if before is not None and before[0] == host:
                return before[1]
            made = self._open[copy] = host, TaskCopy(self._reader(copy, host))
        if before is not None:  # the task has moved
            before[1].close()
        return made[1]

    def _reader(self, copy: _CopyId, host: str) -> CopyReader:
        if host != self._host:
            return self._hosts.reader(host, copy.directory, copy.engine)
        return open_reader(self._spec().directory, copy.directory, copy.engine)
