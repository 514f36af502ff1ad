"""Checks that run on this machine and on executors.

Executors receive this module by value. It imports only the standard library, because Millstream may be missing on executors.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict


@dataclass(frozen=True)
class Wanted:
    """What to probe.

    Attributes:
        modules: The module to import, by package.
        addresses: Hosts and ports that must be reachable.
    """

    modules: Mapping[str, str]
    addresses: Sequence[tuple[str, int]]
    directories: Sequence[str]
    timeout_s: float


class Facts(TypedDict):
    """What was found on an executor.

    Attributes:
        versions: By package: its version, and why it cannot be used.
        unreachable: By address: why it cannot be reached.
        directories: By directory: why it cannot be used, and its free bytes.
    """

    host: str
    executor: str
    interpreter: str
    python: str
    versions: dict[str, tuple[str, str]]
    unreachable: dict[str, str]
    directories: dict[str, tuple[str, int]]


def look(wanted: Wanted, executor_in: Callable[[Mapping[str, str]], str]) -> Facts:
    return {
        "host": socket.gethostname(),
        "executor": executor_in(os.environ),
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "versions": {package: imported(package, module) for package, module in wanted.modules.items()},
        "unreachable": {
            f"{host}:{port}": why
            for (host, port), why in unreachable(wanted.addresses, wanted.timeout_s).items()
        },
        "directories": {directory: _directory(directory) for directory in wanted.directories},
    }


def imported(package: str, module: str) -> tuple[str, str]:
    """Return the version of a package, and why it cannot be used; either may be empty."""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "", "not installed"
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken package may raise anything
        return found, f"{module} cannot be imported: {error!r}"
    return found, ""


def unreachable(addresses: Iterable[tuple[str, int]], timeout_s: float) -> dict[tuple[str, int], str]:
    """Return why addresses cannot be reached."""
    problems = {}
    for address in addresses:
        try:
            socket.create_connection(address, timeout_s).close()
        except OSError as error:
            problems[address] = str(error)
    return problems


def _directory(directory: str) -> tuple[str, int]:
    """Return why a directory cannot be used, and the free bytes of it or its nearest existing parent."""
    path = Path(directory).absolute()
    why, free = try_writing(path)
    if not why and path.is_dir() and path.stat().st_mode & 0o022:
        why = "can be written by other users"
    return why, free


def try_writing(directory: Path) -> tuple[str, int]:
    """Try to write to a directory or its nearest existing parent; return why that fails, and the free bytes."""
    existing = existing_part(directory)
    free = shutil.disk_usage(existing).free
    try:
        tempfile.TemporaryDirectory(prefix=".millstream-doctor-", dir=existing).cleanup()
    except OSError as error:
        return f"cannot be written: {error}", free
    return "", free


def existing_part(directory: Path) -> Path:
    path = directory.absolute()
    while not path.is_dir():
        path = path.parent
    return path
