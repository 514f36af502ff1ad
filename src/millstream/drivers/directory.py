"""The directory of a local copy, as far as it does not depend on the engine.

Besides the engine's own files, it contains:

* ``parked-<number>-<token>``: the changes of a micro-batch that is not yet known to be committed. Several are kept. A copy that is
  some versions behind applies them in order instead of reading the log. They are the segments that the log receives, before
  compression. Format, little endian:

      length of the head (4) | head | segments of the byte stores

  The head is also a segment, with one entry: JSON with the names of the byte stores, the lengths of their segments, and the dropped
  byte stores. Every part therefore has a checksum, which reveals a truncated or overwritten file.
* ``boot-id``: the id of the operating system's boot. Nothing here is synced to disk, so a copy from another boot is discarded: the
  system may have crashed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from millstream.core.model.errors import CopyMovedError, DamagedCopyError, StoreError
from millstream.core.ports import RESTORING, ParkedChanges, Segments, StoreChange, Version
from millstream.core.state.segments.log import Manifest
from millstream.drivers.segments import columns_of, decode, encode, newest

log = logging.getLogger("millstream.state")

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BOOT_MARK: Final = "boot-id"
_HEAD: Final = b"segments"
_KEY, _VALUE = itemgetter(0), itemgetter(1)

MISSING: Final = "the local copy is missing"
OTHER_BOOT: Final = "the local copy was created before the operating system was restarted"
OTHER_FORMAT: Final = "the local copy was created by another version of Millstream"
DAMAGED: Final = "the local copy was damaged"


class ParkedColumns(NamedTuple):
    """The changes of a micro-batch as they were parked.

    Attributes:
        changes: Columns of segments by byte store: each in key order, all with different keys.
    """

    changes: Mapping[str, list[pa.Table]]
    dropped: Collection[str]


class CopyDirectory:
    """The directory of a local copy. Owned by the copy.

    Args:
        kept: Number of parked versions to keep.

    Attributes:
        why_empty: Why the copy is empty, as text for users.
        damage: The error, from the detection of damage until the copy is discarded. None otherwise.
    """

    def __init__(self, path: str, kept: int = 2) -> None:
        self.path = Path(path)
        self.damage: DamagedCopyError | None = None
        self.why_empty = MISSING
        self._kept = kept

    def prepare(self) -> None:
        """Create the directory. Empty it if its content cannot be trusted."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            boot = _BOOT_ID.read_bytes().strip() if _BOOT_ID.exists() else b""
            marker = self.path / _BOOT_MARK
            found = marker.read_bytes() if marker.exists() else None
            if found != boot:
                self.clear(MISSING if found is None else OTHER_BOOT)
                marker.write_bytes(boot)
        except OSError as error:
            raise self.unusable_error(error) from error

    def clear(self, why: str) -> None:
        """Remove the copy's content. ``why`` is the new reason that the copy is empty."""
        self.why_empty = why
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _BOOT_MARK:
                path.unlink(missing_ok=True)

    def park(self, version: Version, changes: Segments, dropped: Collection[str]) -> None:
        """Save the changes of an uncommitted micro-batch, and remove those of old micro-batches."""
        target = self._file(version)
        partial = target.with_suffix(f".{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                file.writelines(parked_bytes(changes, dropped))
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self.unusable_error(error) from error
        for old in self.path.glob("parked-*"):
            number = int(old.name.split("-")[1])
            if number <= version.number - self._kept and old != target:
                old.unlink(missing_ok=True)

    def parked(self, version: Version) -> ParkedChanges | None:
        """Return the parked changes of exactly this version, or None if they are missing or damaged."""
        columns = self.parked_columns(version)
        return None if columns is None else _decoded(columns)

    def parked_columns(self, version: Version) -> ParkedColumns | None:
        """Return the parked changes of exactly this version as columns, or None if they are missing or damaged."""
        try:
            return _columns_in(self._file(version).read_bytes())
        except OSError:
            return None
        except StoreError as error:
            log.warning("cannot use parked changes in %s, reading the log instead: %s", self.path, error)
            return None

    def damaged(self, what: str) -> DamagedCopyError:
        """Record that the copy is damaged and return the error. The record is needed because a user's function may catch the error."""
        self.damage = DamagedCopyError(
            f"the local copy in {self.path} is damaged: {what}. It is deleted and rebuilt from the log; if this happens again, "
            "check the disk and the memory of the host"
        )
        return self.damage

    def throw_away(self) -> None:
        """Empty the directory if the copy is damaged. None of its files may be open."""
        if self.damage is not None:
            self.damage = None
            self.clear(DAMAGED)

    def moved(self, seen: Version | None, found: Version | None) -> CopyMovedError:
        """Return the error for a copy whose version differs from the one that its user has seen."""
        return CopyMovedError(
            f"the local copy in {self.path} went from {seen} to {found} while this attempt of the task was running: "
            "another attempt also writes it, perhaps on an executor that has outlived its application. If this happens "
            "again, stop that executor"
        )

    def only(self, version: Version | None) -> Manifest:
        """Return the manifest for a version of the copy, without history.

        Raises:
            CopyMovedError: If the copy is empty or is being filled.
        """
        if version is None or version == RESTORING or version.toward:
            raise CopyMovedError(f"the local copy in {self.path} is being filled")
        return Manifest(version.number, (version.token,))

    def unusable_error(self, error: Exception) -> StoreError:
        return StoreError(
            f"the local copy in {self.path} cannot be used: {error}. Check that the disk has space and that the directory "
            "belongs to this user, or choose another with the setting state_dir; while the application is stopped, you may "
            "delete the copy: it is rebuilt from the log"
        )

    def _file(self, version: Version) -> Path:
        return self.path / f"parked-{version.number}-{version.token}"


class DirectoryCopy:
    """A local copy with parked changes: the part of ``LocalCopy`` that does not depend on the engine."""

    def __init__(self, directory: CopyDirectory) -> None:
        self.directory = directory

    def why_empty(self) -> str:
        return self.directory.why_empty

    def park(self, version: Version, changes: Segments, dropped: Collection[str] = ()) -> None:
        self.directory.park(version, changes, dropped)

    def parked(self, version: Version) -> ParkedChanges | None:
        return self.directory.parked(version)


def parked_bytes(changes: Segments, dropped: Collection[str]) -> Iterable[bytes]:
    """Return the content of a file of parked changes, in parts."""
    sizes = [[store, [len(part) for part in parts]] for store, parts in changes.items()]
    head = encode([(_HEAD, json.dumps({"stores": sizes, "dropped": sorted(dropped)}).encode())])
    return chain((len(head).to_bytes(4, "little"), head), *changes.values())


def changes_of(data: bytes) -> ParkedChanges:
    """Return the changes in a file of parked changes, in key order.

    Raises:
        StoreError: If the file is damaged.
    """
    return _decoded(_columns_in(data))


def _decoded(columns: ParkedColumns) -> ParkedChanges:
    changes = {store: list(chain.from_iterable(newest(runs))) for store, runs in columns.changes.items()}
    return ParkedChanges(changes, columns.dropped)


def _columns_in(data: bytes) -> ParkedColumns:
    start = 4 + int.from_bytes(data[:4], "little")
    head = decode(data[4:start], "parked changes")
    if len(head) != 1 or head[0][0] != _HEAD or head[0][1] is None:
        raise StoreError("parked changes have no head")
    header, changes = json.loads(head[0][1]), {}
    for store, sizes in header["stores"]:
        ends = list(accumulate(sizes, initial=start))
        parts, start = [data[first:last] for first, last in pairwise(ends)], ends[-1]
        changes[store] = [columns_of(part, f"parked changes of store {store!r}") for part in parts]
    return ParkedColumns(changes, header["dropped"])


def in_parts(
    changes: Mapping[str, Iterable[StoreChange]], budget: int, entry_bytes: int
) -> list[dict[str, list[StoreChange]]]:
    """Sort changes by key and split them into parts of at most ``budget`` bytes, one per transaction. Returns at least one part."""
    parts: list[dict[str, list[StoreChange]]] = []
    room = 0
    for store, items in changes.items():
        ordered = sorted(items, key=_KEY)
        values = sum(map(len, filter(None, map(_VALUE, ordered))))
        each = entry_bytes + values // max(len(ordered), 1)
        start = 0
        while start < len(ordered):
            if room < each:
                parts.append({})
                room = max(budget, each)
            piece = parts[-1][store] = ordered[start : start + room // each]
            room -= len(piece) * each
            start += len(piece)
    return parts or [{}]


def on_its_way(held: Version | None, version: Version) -> Version:
    """Return the version of a partially written copy."""
    if version.toward or version.number < 0:
        return version
    return RESTORING if held is None else held._replace(toward=version.token)


def version_to_bytes(version: Version) -> bytes:
    """Encode a version for a copy's own files."""
    return f"{version.number} {version.token} {version.toward}".encode()


def version_from_bytes(data: bytes) -> Version:
    number, token, toward = data.decode().split(" ")
    return Version(int(number), token, toward)
