"""Free space on the disks of an application, for error messages."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millstream.core.model.errors import SettingsError

Usage = Callable[[str], tuple[int, int, int]]
"""Returns total, used and free bytes of the disk of a path."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def unwritable(path: Path, error: OSError) -> SettingsError:
    """Return the error for an unwritable file in an application's directory."""
    what = f"{str(path)!r} cannot be written: {error.strerror or error}"
    if error.errno in _FULL:
        return SettingsError(
            f"{what}; its disk has {free_space(str(path))}. Free some space, or set state_dir to a directory on another disk, and start the "
            "application again; nothing is lost"
        )
    return SettingsError(
        f"{what}. Set state_dir to a directory on a local disk that belongs to the user who runs the application"
    )


def free_space(path: str, usage: Usage = shutil.disk_usage) -> str:
    """Return the free space on the disk of a path, as text. The path need not exist."""
    existing = Path(path)
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    total, _, free = usage(str(existing))
    return f"{free / 2**20:,.1f} of {total / 2**20:,.1f} MiB free"
