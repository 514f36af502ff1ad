"""The RocksDB database of a local copy: its column families, and when they are flushed.

Each byte store is a column family, so that it can be dropped with its files and counted separately. Column families are numbered.
The default column family maps byte stores to numbers, in the same write batch as the version. A number without a byte store was dropped,
or is the remains of a crash. Its column family is dropped when the database is opened the next time: dropping takes effect at once, but
the version that no longer has the byte store is on disk only after the flush.

There is no write-ahead log. Before the database is closed, memory is flushed atomically for all column families (``atomic_flush``). After
a crash, all of them therefore have the content of one earlier version, from which the copy catches up. Queries read the same files.

A handle of rocksdict flushes its own column family when it is released, without the others. If handles had anything left to flush, the
files would have the new version before its content, for a reader for some milliseconds, and after a crash for good. Every path that
releases the database therefore flushes it before (:meth:`Database.close`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

import rocksdict

from millstream.core.model.errors import StoreError
from millstream.core.ports import StoreChange, Version
from millstream.drivers.directory import version_to_bytes
from millstream.drivers.rocksdb.rocksdb_options import unlogged

VERSION: Final = b"version"
"""Key of the version in the default column family."""
_DEFAULT_FAMILY = "default"
_NAME = b"name "
_POLL_S = 0.02
_SETTLE_S = 2.0
_RUNNING = "rocksdb.num-running-compactions"


def families(path: str, opts: rocksdict.Options) -> dict[str, rocksdict.Options]:
    """Return the column families of a database except the default one, with their options."""
    return {name: opts for name in rocksdict.Rdict.list_cf(path, opts) if name != _DEFAULT_FAMILY}


def store_numbers(meta: rocksdict.Rdict, known: Collection[str]) -> dict[str, str]:
    """Return the column family of each byte store, read from the default column family.

    Raises:
        Exception: If the entries cannot be read, or the column family of a byte store is not open. rocksdict has no error class.
    """
    numbers: dict[str, str] = {}
    cursor = meta.iter()
    cursor.seek(_NAME)
    while cursor.valid() and cursor.key().startswith(_NAME):
        numbers[cursor.key()[len(_NAME) :].decode()] = cursor.value().decode()
        cursor.next()
    cursor.status()  # an error also ends the iteration
    missing = set(numbers.values()).difference(known)
    if missing:
        raise StoreError(f"column families {', '.join(sorted(missing))} are missing")
    return numbers


class Database:
    """An open database. It closes when the last reference to it, its families and its iterators is released."""

    def __init__(self, path: str, opts: rocksdict.Options) -> None:
        self._options = opts
        known = families(path, opts) if os.path.exists(f"{path}/CURRENT") else {}
        self.meta = rocksdict.Rdict(path, opts, known)
        self.numbers = store_numbers(self.meta, known)
        self._next = max(map(int, known), default=0) + 1
        for name in known.keys() - self.numbers.values():
            self.meta.drop_column_family(name)
        self._families: dict[str, Any] = {}

    def family(self, store: str) -> Any:
        number = self.numbers[store]
        if number not in self._families:
            self._families[number] = self.meta.get_column_family(number)
        return self._families[number]

    def write(
        self, changes: Mapping[str, list[StoreChange]], version: Version, dropped: Collection[str]
    ) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for store in dropped:
            self.numbers.pop(store, None)
            batch.delete(_NAME + store.encode())
        for store, items in changes.items():
            if store not in self.numbers:
                self._create(store)
                batch.put(_NAME + store.encode(), self.numbers[store].encode())
            handle = self.meta.get_column_family_handle(self.numbers[store])
            put, delete = batch.put, batch.delete
            for key, value in items:
                if value is None:
                    delete(key, handle)
                else:
                    put(key, value, handle)
        batch.put(VERSION, version_to_bytes(version))
        self.meta.write(batch, unlogged())

    def close(self) -> None:
        """Wait a limited time for running compactions, then flush all column families at once.

        The end of the last reference aborts compactions. With short micro-batches, none would ever finish, and files would accumulate
        until writes stall.
        """
        deadline = time.monotonic() + _SETTLE_S
        while self.meta.property_int_value(_RUNNING) and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # RocksDB offers no event for the end of a compaction
        # This is the flush of all column families. Afterwards nothing is left that a handle could flush alone.
        self.meta.cancel_all_background(True)

    def _create(self, store: str) -> None:
        number = str(self._next)
        self._next += 1
        self._families[number] = self.meta.create_column_family(number, self._options)
        self.numbers[store] = number
