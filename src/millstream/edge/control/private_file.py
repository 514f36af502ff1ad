"""Files in an application's directory that only its user may read."""

from __future__ import annotations

import os
from pathlib import Path

from millstream.edge.checkpoint.disk_space import unwritable


def write_private_file(file: Path, text: str) -> None:
    """Write a file that only this user may read. It replaces an earlier one; a reader never sees a part of it.

    Raises:
        SettingsError: If the file cannot be written.
    """
    partial = file.with_name(f"{file.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "w", encoding="utf-8") as opened:
            opened.write(text)
        partial.replace(file)
    except OSError as error:
        raise unwritable(file, error) from None
