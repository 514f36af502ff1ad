"""What an executor is looked at with. It is sent by value and imports nothing but Python's own, for Penstock may be missing there."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wanted:
    """What is looked for.

    Attributes:
        modules: The module of each package.
        places: Host and port of what has to be reached.
        directories: Directories that must be writable.
        timeout_s: How long a port may take to answer.
    """

    modules: Mapping[str, str]
    places: Sequence[tuple[str, int]]
    directories: Sequence[str]
    timeout_s: float


Facts = dict[str, object]
"""What was found, as Python's own values: a class of ours could not be read back by value."""


def look(wanted: Wanted, executor_in: Callable[[Mapping[str, str]], str]) -> Facts:
    """Look at the host of this process."""
    return {
        "host": socket.gethostname(),
        "executor": executor_in(os.environ),
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "versions": {package: _version(package, module) for package, module in wanted.modules.items()},
        "unreachable": {
            f"{host}:{port}": why for host, port in wanted.places if (why := _tried(host, port, wanted))
        },
        "directories": {directory: _directory(directory) for directory in wanted.directories},
    }


def _version(package: str, module: str) -> tuple[str, str]:
    """Return the version of a package, and why it cannot be used."""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "", "not installed"
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a broken package raises
        return found, f"{module} cannot be imported: {error!r}"
    return found, ""


def _tried(host: str, port: int, wanted: Wanted) -> str:
    try:
        socket.create_connection((host, port), wanted.timeout_s).close()
    except OSError as error:
        return str(error)
    return ""


def _directory(directory: str) -> tuple[str, int]:
    """Return what is wrong with a directory, and how many bytes are free where it is or will be."""
    place = Path(directory).absolute()
    while not place.is_dir():
        place = place.parent
    free = shutil.disk_usage(place).free
    try:
        tempfile.TemporaryDirectory(prefix=".penstock-doctor-", dir=place).cleanup()
    except OSError as error:
        return f"cannot be written: {error}", free
    found = place.stat()
    if place == Path(directory).absolute() and found.st_mode & 0o022:
        return "can be written by other users", free
    return "", free
