"""The local copy of a task's byte stores in LMDB. Implements ``LocalCopy``, ``ByteStores`` and ``ByteReader``.

Why LMDB: Spark's Python workers take turns, so any worker of a host must be able to open any task's stores at once; LMDB
opens in half a millisecond, is shared by memory map, and allows many readers beside one writer. It is a cache of
committed state and can always be rebuilt from the log, so it is never synced to disk. After a crash of the operating
system (told by its boot id) it is therefore thrown away, not trusted.

Every key is prefixed with one byte, because LMDB has no empty keys and the empty string is a key like any other.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb

from penstock.core.model.errors import StoreError
from penstock.core.ports import ByteReader, ByteStores, StoreChange, Version
from penstock.core.state.memory import NOTHING

MAX_KEY_BYTES = 510
_PREFIX = b"k"
_META = "/version"  # no store can have this name
_VERSION = b"version"
_MAP_SIZE = 64 << 30
_MAX_STORES = 256
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_OPEN: dict[str, LmdbCopy] = {}


def open_local_copy(directory: str) -> LmdbCopy:
    """Open the local copy in a directory; one per process and directory, as LMDB demands.

    Raises:
        StoreError: If the directory cannot be written.
    """
    copy = _OPEN.get(directory)
    if copy is None or not copy.alive():
        copy = _OPEN[directory] = LmdbCopy(directory)
    return copy


class LmdbCopy:
    """One LMDB environment per task, one named database per byte store. Owned by the process that opened it."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._databases: dict[str, Any] = {}
        self._view: LmdbView | None = None
        self._env: Any = self._opened()

    def alive(self) -> bool:
        """Tell whether the files that were opened are still the ones in the directory."""
        try:
            return os.stat(self._directory / "data.mdb").st_ino == self._inode
        except OSError:
            return False

    def version(self) -> Version | None:
        """Give the version of the content, None for an empty copy."""
        with self._env.begin(db=self._database(_META)) as transaction:
            stored = transaction.get(_VERSION)
        if stored is None:
            return None
        number, token = stored.decode().split(" ")
        return Version(int(number), token)

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        """Drop byte stores, write changes of committed batches, and set their version, in one transaction.

        Raises:
            StoreError: If the disk is full or the directory cannot be written.
        """
        self._make_room(len(changes))
        databases = {store: self._database(store) for store in changes}
        gone = {name: self._database(name) for name in self.names().intersection(dropped)}
        meta = self._database(_META)
        try:
            with self._env.begin(write=True) as transaction:
                for database in gone.values():
                    transaction.drop(database)
                for store, items in changes.items():
                    _write(transaction, databases[store], items)
                transaction.put(_VERSION, f"{version.number} {version.token}".encode(), db=meta)
        except lmdb.Error as error:
            raise self._failed(error) from error
        for name in gone:
            del self._databases[name]

    def check(self, changes: Mapping[str, Iterable[StoreChange]]) -> None:
        """Refuse keys that LMDB cannot hold.

        Raises:
            StoreError: If a key has more than 510 bytes.
        """
        for store, items in changes.items():
            longest = max((len(key) for key, _ in items), default=0)
            if longest > MAX_KEY_BYTES:
                raise StoreError(
                    f"store {store!r}: a key of {longest} bytes is too long for the engine LMDB, whose limit is "
                    f"{MAX_KEY_BYTES}. Use a shorter key, for example a hash, and keep the long form in the value"
                )

    def wipe(self) -> None:
        """Remove everything, before a rebuild from the log."""
        self._env.close()
        self._databases.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._env = self._opened()

    def names(self) -> frozenset[str]:
        """Give the names of the byte stores that exist."""
        with self._env.begin() as transaction:
            names = [bytes(name).decode() for name, _ in transaction.cursor()]
        return frozenset(name for name in names if name != _META)

    def open_view(self) -> ByteStores:
        """Open one consistent view."""
        self._view = LmdbView(self._env)
        return self._view

    def close_view(self) -> None:
        """End the view that :meth:`open_view` gave."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def park(self, version: Version, payload: bytes) -> None:
        """Keep the changes of a batch that is not committed yet beside the copy; older ones are removed."""
        target = self._parked_path(version)
        partial = target.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_bytes(payload)
            partial.replace(target)
        except OSError as error:
            raise self._failed(error) from error
        for old in self._directory.glob("parked-*"):
            number = int(old.name.split("-")[1])
            if number < version.number - 1 and old != target:
                old.unlink(missing_ok=True)

    def parked(self, version: Version) -> bytes | None:
        """Give the parked changes of exactly this version, if they are here."""
        try:
            return self._parked_path(version).read_bytes()
        except OSError:
            return None

    def _parked_path(self, version: Version) -> Path:
        return self._directory / f"parked-{version.number}-{version.token}"

    def _opened(self) -> Any:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._forget_other_boots()
            env = lmdb.open(
                str(self._directory),
                map_size=_MAP_SIZE,
                max_dbs=_MAX_STORES,
                sync=False,
                metasync=False,
                max_readers=512,
                readahead=False,
            )
            env.reader_check()
            self._inode = os.stat(self._directory / "data.mdb").st_ino
            return env
        except (OSError, lmdb.Error) as error:
            raise self._failed(error) from error

    def _forget_other_boots(self) -> None:
        """Throw the copy away if the operating system was started anew: unsynced pages may be lost."""
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        marker = self._directory / "boot-id"
        if marker.exists() and marker.read_text() == boot:
            return
        for path in self._directory.iterdir():
            path.unlink()
        marker.write_text(boot)

    def _make_room(self, wanted: int) -> None:
        """Open the environment anew when its table of handles is nearly full; dropped slices leave theirs behind."""
        if len(self._databases) + wanted > _MAX_STORES // 2:
            self._databases.clear()
            self._env.close()
            self._env = self._opened()

    def _database(self, store: str) -> Any:
        if store not in self._databases:
            self._databases[store] = self._env.open_db(store.encode())
        return self._databases[store]

    def _failed(self, error: Exception) -> StoreError:
        return StoreError(
            f"the local copy in {self._directory} cannot be used: {error}. Check that the disk has space and that the "
            "directory belongs to this user, or choose another with the setting state_dir; the copy may be deleted "
            "while the application is stopped, it is rebuilt from the log"
        )


def _write(transaction: Any, database: Any, items: Iterable[StoreChange]) -> None:
    ordered = sorted(items)
    transaction.cursor(db=database).putmulti(
        [(_PREFIX + key, value) for key, value in ordered if value is not None]
    )
    for key, value in ordered:
        if value is None:
            transaction.delete(_PREFIX + key, db=database)


class LmdbView:
    """One moment of all byte stores. Implements ``ByteStores``; valid until it is closed."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._transaction = env.begin()

    def open(self, name: str) -> ByteReader:
        """Give a byte store; one that does not exist is empty."""
        try:
            database = self._env.open_db(name.encode(), txn=self._transaction, create=False)
        except lmdb.NotFoundError:
            return NOTHING
        return LmdbReader(self._transaction, database)

    def close(self) -> None:
        """End the view."""
        self._transaction.abort()


class LmdbReader:
    """One byte store in one view. Valid until the view is closed."""

    def __init__(self, transaction: Any, database: Any) -> None:
        self._transaction = transaction
        self._database = database
        self._get = transaction.get

    def get(self, key: bytes) -> bytes | None:
        """Give the value of a key, or None."""
        if len(key) > MAX_KEY_BYTES:
            return None
        found: bytes | None = self._get(_PREFIX + key, None, self._database)
        return found

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over ``low <= key < high``."""
        cursor = self._transaction.cursor(db=self._database)
        first = None if low is None else _PREFIX + low
        last = None if high is None else _PREFIX + high
        return _backwards(cursor, first, last) if reverse else _forwards(cursor, first, last)

    def approximate_count(self) -> int:
        """Give the number of keys."""
        count: int = self._transaction.stat(self._database)["entries"]
        return count


def _forwards(cursor: Any, first: bytes | None, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if not (cursor.first() if first is None else cursor.set_range(first)):
        return
    for key, value in cursor:
        if last is not None and key >= last:
            return
        yield key[1:], value


def _backwards(cursor: Any, first: bytes | None, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    behind = last is not None and cursor.set_range(last)
    if not (cursor.prev() if behind else cursor.last()):
        return
    for key, value in cursor.iterprev():
        if first is not None and key < first:
            return
        yield key[1:], value
