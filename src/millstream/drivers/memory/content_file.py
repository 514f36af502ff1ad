"""The content of a copy in memory, as a file beside its parked changes, for queries in other processes.

A query requests the content with the file ``wanted``. The file ``content-<number>-<token>`` then contains it, in the format of parked
changes. This file may be a few versions old: parked changes lead from it to the committed state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from millstream.core.model.errors import StoreError
from millstream.core.ports import Changes, Version
from millstream.drivers.directory import CopyDirectory, changes_of, parked_bytes
from millstream.drivers.segments import encode

PARKED_VERSIONS: Final = 32
"""Number of parked versions beside a copy."""

_WANTED: Final = "wanted"
_CONTENT: Final = "content-"


def want_content(directory: CopyDirectory) -> None:
    """Request the content from the task. Does nothing if the directory of the task does not exist."""
    with suppress(OSError):
        (directory.path / _WANTED).touch()


def is_wanted(directory: CopyDirectory) -> bool:
    return (directory.path / _WANTED).exists()


def write_content(directory: CopyDirectory, version: Version, content: Changes) -> None:
    """Write the content at a version. Replaces older content."""
    target = directory.path / f"{_CONTENT}{version.number}-{version.token}"
    partial = directory.path / f"content.{os.getpid()}.partial"
    try:
        segments = {store: [encode(entries)] for store, entries in content.items()}
        with partial.open("wb") as file:
            file.writelines(parked_bytes(segments, ()))
        partial.replace(target)
        for old, _ in _files(directory):
            if old != target:
                old.unlink(missing_ok=True)
        (directory.path / _WANTED).unlink(missing_ok=True)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise directory.unusable_error(error) from error


def contents(directory: CopyDirectory) -> Iterator[tuple[Version, Changes]]:
    """Yield the existing contents. Damaged contents, and those being replaced, are skipped."""
    for path, version in list(_files(directory)):
        with suppress(OSError, StoreError):
            yield version, changes_of(path.read_bytes()).changes


def _files(directory: CopyDirectory) -> Iterator[tuple[Path, Version]]:
    for path in directory.path.glob(f"{_CONTENT}*"):
        _, number, token = path.name.split("-", 2)
        yield path, Version(int(number), token)
