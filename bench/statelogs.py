"""The state of one task without Spark: the log in a file, the local copy in an engine, a process of its own.

``python -m bench.statelogs PART JSON`` prints one line of JSON. Spark's part in a restore, handing segments over a socket, is
left out: what is measured is what a Python worker does with them, on one core. Values are random bytes, which do not compress.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from bench.sampling import sampling
from millstream.core.model.ids import TaskId
from millstream.core.ports import LocalCopy, StoreChange
from millstream.core.state.segments.log import Manifest
from millstream.drivers.spark.crossing import paused_gc
from millstream.drivers.spark.executor.restore import RestoreSettings
from millstream.drivers.spark.executor.restore_progress import RestoreProgress
from millstream.drivers.spark.executor.statelog import StateLog

STORE = "store"
KEY_BYTES, VALUE_BYTES = 12, 88
_SAMPLE_S = 0.02
_LOAD_BATCH_RECORDS = 250_000


class FileState:
    """Spark's map state as far as the log uses it, in one file that only grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._extents: dict[Any, tuple[int, int]] = {}
        self._end = 0

    def getValue(self, key: Any) -> Any:  # noqa: N802 - Spark's name
        """Read a segment."""
        extent = self._extents.get(key)
        return None if extent is None else (os.pread(self._file.fileno(), extent[1], extent[0]),)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802 - Spark's name
        """Write a segment."""
        (data,) = value
        self._extents[key] = (self._end, len(data))
        self._end += os.pwrite(self._file.fileno(), data, self._end)

    def removeKey(self, key: Any) -> None:  # noqa: N802 - Spark's name
        """Remove a segment."""
        extent = self._extents.pop(key, None)
        if extent is not None:
            _punch(self._file.fileno(), *extent)

    def __getstate__(self) -> dict[str, Any]:
        return {"_extents": self._extents, "_end": self._end}

    def reopen(self, path: Path) -> None:
        """Open the file again, in the process that this was handed to."""
        self._file = path.open("r+b")


class Worker:
    """A task's log and one local copy of it, in a directory."""

    def __init__(self, home: Path, engine: str, memory_bytes: int) -> None:
        self.home, self.engine, self.memory_bytes = home, engine, memory_bytes
        self._open: Callable[[str, int], LocalCopy] = importlib.import_module(
            f"millstream.drivers.{engine}"
        ).open_local_copy
        self.state = FileState(home / "log")
        self.manifest = Manifest()
        self.lines: list[str] = []

    def copy(self, name: str = "copy") -> LocalCopy:
        """Open a copy."""
        return self._open(str(self.home / name), self.memory_bytes)

    def copy_bytes(self, name: str = "copy") -> int:
        """Return the size of a copy on disk, without the parked changes beside it."""
        files = (path for path in (self.home / name).rglob("*") if path.is_file())
        return sum(path.stat().st_blocks * 512 for path in files if not path.name.startswith("parked-"))

    def log(self) -> StateLog:
        """Return the log, as a batch creates it."""
        settings = RestoreSettings(self.memory_bytes, str(self.home), self._add_line)
        return StateLog(self.state, TaskId(0, 0), settings)

    def restore(self, name: str = "copy") -> tuple[float, int]:
        """Bring a copy up; give the seconds and the changes that were fetched."""
        began = time.monotonic()
        with paused_gc():
            copy = self.copy(name)
            fetched = self.log().restore(self.manifest, copy)
            copy.close_view()
        return time.monotonic() - began, fetched

    def batch(self, changes: list[StoreChange]) -> float:
        """Run a batch that changes the store; give its seconds."""
        began = time.monotonic()
        with paused_gc():
            log, copy = self.log(), self.copy()
            log.restore(self.manifest, copy)
            copy.close_view()
            self.manifest = log.write(self.manifest, {STORE: changes}, copy)
        return time.monotonic() - began

    def _add_line(self, progress: RestoreProgress) -> None:
        self.lines.append(progress.line())


def restore(records: int, engine: str, memory_bytes: int) -> dict[str, Any]:
    """Restore a copy from nothing, then one that is a few versions behind."""
    with _worker(engine, memory_bytes) as worker:
        load_s = _load(worker, records)
        worker.restore()
        nothing_s, fetched = worker.restore("from-nothing")
        shown = worker.lines[-3:]
        behind = max(records // 100, 1)
        rng = np.random.default_rng(7)
        for _ in range(5):
            worker.batch(_changes(rng.choice(records, behind, replace=False), rng))
        stale_s, stale = worker.restore("from-nothing")
        return {
            "engine": engine, "records": records, "load_records_per_s": records / load_s,
            "nothing_s": nothing_s, "nothing_records_per_s": fetched / nothing_s,
            "stale_s": stale_s, "stale_records": stale, "lines": shown,
        }  # fmt: skip


def space(records: int, engine: str, memory_bytes: int, rounds: int) -> dict[str, Any]:
    """Overwrite a tenth of the keys again and again; compare what log and copy take with the live data."""
    with _worker(engine, memory_bytes) as worker:
        _load(worker, records)
        rng = np.random.default_rng(3)
        logs, copies, seconds = [], [], []
        live = records * (KEY_BYTES + VALUE_BYTES)
        for _ in range(rounds):
            seconds.append(worker.batch(_changes(rng.integers(0, records, records // 10), rng)))
            sizes = [segment.size for group in worker.manifest.segments.values() for segment in group]
            logs.append(sum(sizes) / live)
            copies.append(worker.copy_bytes() / live)
        return {
            "engine": engine, "records": records, "rounds": rounds, "log": logs, "copy": copies, "batch_s": seconds,
        }  # fmt: skip


def big_state(records: int, engine: str, memory_bytes: int, updates: int, rounds: int) -> dict[str, Any]:
    """Load a store that is larger than the memory it may take, change it, read it; watch this process."""
    with _worker(engine, memory_bytes) as worker:
        _settle()
        before = _rss()
        load_s = _load_apart(worker, records)
        with _peak() as restoring:
            restore_s, fetched = worker.restore()
        rng = np.random.default_rng(5)
        with _peak() as updating:
            seconds = [worker.batch(_changes(rng.integers(0, records, updates), rng)) for _ in range(rounds)]
        with _peak() as reading:
            read_s = _read(worker, (rng.integers(0, records, updates // 10) for _ in range(10 * rounds)))
        return {
            "engine": engine, "records": records, "bound_bytes": memory_bytes, "before_bytes": before,
            "load_records_per_s": records / load_s,
            "restore_records_per_s": fetched / restore_s, "restore_bytes": restoring[0] - before,
            "batch_s": seconds, "batch_bytes": updating[0] - before,
            "reads_per_s": updates * rounds / read_s, "read_bytes": reading[0] - before,
            "copy_bytes": worker.copy_bytes(),
        }  # fmt: skip


def _load(worker: Worker, records: int) -> float:
    """Write all keys to the log, in random order, without a copy; return the seconds."""
    rng = np.random.default_rng(1)
    order = rng.permutation(records)
    seconds = 0.0
    copy = worker.copy("parked")
    for part in np.array_split(order, max(records // _LOAD_BATCH_RECORDS, 1)):
        changes = _changes(part, rng)
        began = time.monotonic()
        with paused_gc():
            worker.manifest = worker.log().write(worker.manifest, {STORE: changes}, copy)
        seconds += time.monotonic() - began
    return seconds


def _load_apart(worker: Worker, records: int) -> float:
    """Load in a process of its own, so that this one keeps the size of a worker that has just started; give the seconds."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        arguments = (worker.home, worker.engine, worker.memory_bytes, records)
        worker.manifest, worker.state, seconds = pool.submit(_loaded, *arguments).result()
    worker.state.reopen(worker.home / "log")
    return seconds


def _loaded(home: Path, engine: str, memory_bytes: int, records: int) -> tuple[Manifest, FileState, float]:
    worker = Worker(home, engine, memory_bytes)
    seconds = _load(worker, records)
    return worker.manifest, worker.state, seconds


def _read(worker: Worker, parts: Iterable[Any]) -> float:
    copy = worker.copy()
    reader = copy.open_view().open(STORE)
    began = time.monotonic()
    for numbers in parts:
        for number in numbers.tolist():
            assert reader.get(b"key-%08d" % number) is not None
    seconds = time.monotonic() - began
    copy.close_view()
    return seconds


def _changes(numbers: Any, rng: Any) -> list[StoreChange]:
    """Return a change for each number, with a random value."""
    values = rng.bytes(len(numbers) * VALUE_BYTES)
    changed = {
        b"key-%08d" % number: values[start : start + VALUE_BYTES]
        for number, start in zip(numbers.tolist(), range(0, len(values), VALUE_BYTES), strict=True)
    }
    return list(changed.items())


@contextmanager
def _worker(engine: str, memory_bytes: int) -> Iterator[Worker]:
    home = Path(tempfile.mkdtemp(prefix="bench-state-"))
    try:
        yield Worker(home, engine, memory_bytes)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Yield a list with the largest resident memory of this process during the block, valid when it has ended."""
    most = [0]

    def sample() -> None:
        most[0] = max(most[0], _rss())

    try:
        with sampling(sample, _SAMPLE_S):
            yield most
    finally:
        sample()
        _settle()


def _rss() -> int:
    return int(psutil.Process().memory_info().rss)


def _settle() -> None:
    """Return freed memory to the system, so that one part of a measurement does not count for the next."""
    pa.default_memory_pool().release_unused()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)


def _punch(file: int, start: int, size: int) -> None:
    """Free the disk space of a removed segment, where the system can."""
    if sys.platform.startswith("linux"):
        keep_size, punch_hole = 1, 2
        ctypes.CDLL(None).fallocate(file, keep_size | punch_hole, ctypes.c_int64(start), ctypes.c_int64(size))


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "restore": restore,
    "space": space,
    "big-state": big_state,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](**json.loads(sys.argv[2]))))
