"""Global stores of a task in a micro-batch: one copy per store and host, shared by all tasks of the host.

The copies are beside the copies of tasks, in ``<directory>/global/<store>/<engine>``. The first task brings a copy up to date (see
``global_restore.py``); the other tasks find it current. A lock of the operating system, released by a crash, guards the copy. If an engine
allows several reading processes, the task releases the lock before its step, because an open view does not change. Otherwise,
the tasks of a host take turns.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from millstream.core.model.errors import StoreError
from millstream.core.model.positions import Offsets
from millstream.core.ports import ByteReader, ByteStores, LocalCopy, store_of
from millstream.drivers.spark.executor.copies import CopiesSpec, directory_of_global, remove_all_but
from millstream.drivers.spark.executor.global_restore import (
    GlobalPart,
    GlobalRestore,
    GlobalRestoreCounts,
    GlobalTopics,
)
from millstream.drivers.spark.executor.restore_progress import RestoreListener
from millstream.drivers.spark.spec import TopologySpec

log = logging.getLogger("millstream.state")

_LOCK: Final = "lock"
_WAIT_S: Final = 60.0
"""After this time, a wait for a lock is logged, and again each time that it has passed."""
_LONGEST: Final = 100


@dataclass(frozen=True)
class GlobalStoresSpec:
    """What a host needs to know about global stores."""

    topology: TopologySpec
    copies: CopiesSpec
    topics: GlobalTopics
    listener: RestoreListener

    def parts(self) -> list[GlobalPart]:
        """Return the global parts in locking order, which is the same for all tasks."""
        plan, ids = self.topology.plan, self.topology.lineage.topic_ids
        return [
            GlobalPart(
                part,
                plan.application_id,
                ids.get(part.source_topics[0], ""),
                self.topology.policies,
                self.topology.app_config,
            )
            for part in sorted(plan.global_parts, key=lambda part: part.source_topics)
        ]


class GlobalStores:
    """The global stores as one task sees them. A context manager that implements ``ByteStores``.

    Args:
        task: The task. Restores are reported for it.
        planned: The offsets that the micro-batch sees.
    """

    def __init__(self, spec: GlobalStoresSpec, task: str, planned: Offsets, now_ms: int) -> None:
        self._spec = spec
        self._task = task
        self._planned = planned
        self._now_ms = now_ms
        self._views: dict[str, ByteStores] = {}
        self._opened_copies = ExitStack()
        self.counts = GlobalRestoreCounts()

    def __enter__(self) -> Self:
        """Restore the copies and open a view of each."""
        with ExitStack() as opened:
            for part in self._spec.parts():
                self._views[part.store] = self._open_store(part, self._planned[part.topic], opened)
            self._opened_copies = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._views = {}
        self._opened_copies.close()

    def open(self, name: str) -> ByteReader:
        return self._views[store_of(name)].open(name)

    def _open_store(self, part: GlobalPart, planned: Mapping[int, int], opened: ExitStack) -> ByteStores:
        copies = self._spec.copies
        engine = copies.engines[part.store]
        directory = Path(copies.directory) / directory_of_global(part.store)
        lock = HostLock(directory / _LOCK)
        opened.callback(lock.release)
        lock.acquire()
        remove_all_but((engine, _LOCK), directory)
        copy: LocalCopy = copies.open_copy(engine, str(directory / engine))
        opened.callback(copy.close_view)
        restore = GlobalRestore(
            part,
            copy,
            self._spec.topics,
            task=self._task,
            listener=self._spec.listener,
            now_ms=self._now_ms,
        )
        view = restore.view_at(planned, self.counts)
        if not copy.exclusive:
            lock.release()
        return view


class HostLock:
    """A lock between the processes of a host, on a file that is created if missing and contains the process that holds it.

    A wait has no limit: the holder may be restoring a large copy, or be a task with a long micro-batch, and the lock ends with its process.

    Args:
        wait_s: After this time, a wait is logged, and again each time that it has passed.
    """

    def __init__(self, path: Path, wait_s: float = _WAIT_S) -> None:
        self._path = path
        self._wait_s = wait_s
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock. Waits while another process holds it, and logs which one if that takes long."""
        try:
            while self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
                self._lock(self._file)
                if not self._is_in_place():  # the directory was deleted after the file was opened
                    self.release()
        except OSError as error:
            self.release()
            raise StoreError(
                f"cannot write and lock the file {self._path}, which protects the copy of a global store: {error}. Check "
                "that the disk has space and that the directory belongs to this user, or choose another with the setting "
                "state_dir"
            ) from error

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self._logged_wait(file):
                fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(OSError):  # without the process id on a full disk
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)

    @contextmanager
    def _logged_wait(self, file: int) -> Iterator[None]:
        over = threading.Event()

        def report() -> None:
            waited_s = 0.0
            while not over.wait(self._wait_s):
                waited_s += self._wait_s
                holder = os.pread(file, _LONGEST, 0).decode(errors="replace") or "unknown"
                log.warning(
                    "waiting for %.0f s for the lock of a global store's copy, %s, which process %s holds: it restores the copy or runs a "
                    "task. If it hangs, end it; the lock ends with it",
                    waited_s,
                    self._path,
                    holder,
                )

        reporting = threading.Thread(target=report, name="millstream-lock", daemon=True)
        reporting.start()
        try:
            yield
        finally:
            over.set()
            reporting.join()

    def release(self) -> None:
        if self._file is not None:
            # Explicitly, because a child that a user's function has forked keeps the file open.
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    def _is_in_place(self) -> bool:
        assert self._file is not None
        try:
            return os.stat(self._path).st_ino == os.fstat(self._file).st_ino
        except FileNotFoundError:
            return False
