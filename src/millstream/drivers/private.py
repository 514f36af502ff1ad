"""Private directories: locations for sockets and scratch files that other users cannot access.

Each directory has a random name, so no other user can occupy it in advance. Its mode is 0700, so the files in it need no modes of their
own. A process holds a lock in the directory that it uses. The next process removes the directories of killed processes, whose locks are
free.

The process locks the directory itself, too. systemd-tmpfiles removes from ``/tmp`` what was not used for some days, but nothing from a locked
directory (``tmpfiles.d(5)``).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "millstream-private-"

_LONGEST: Final = 30
"""Maximum length of the parent of private directories, in bytes. Spark puts its sockets there, and accepts at most 60 bytes."""
_SHORT: Final = "/tmp"
_MAKING: Final = threading.Lock()
_SETTLED_S: Final = 60.0
"""A directory that was changed more recently than this may belong to a process that has not locked it yet."""


def make_private(directory: Path) -> None:
    """Create a directory, with its parents, that only this user may enter. Close an existing directory to other users.

    Raises:
        OSError: If it cannot be created, or belongs to another user.
    """
    try:
        private = is_private(directory)
    except FileNotFoundError:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        private = is_private(directory)
    if not private:
        directory.chmod(0o700)


def private_directory() -> Path:
    """Create a directory with a random name among the temporary files."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _LONGEST:
        parent = _SHORT
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))


def process_directory() -> Path:
    """Return the private directory of this process. It is removed when the process ends."""
    with _MAKING:
        return _process_directory()


@cache
def _process_directory() -> Path:
    remove_abandoned()
    directory = private_directory()
    lock = locked(directory / "process.lock")
    assert lock is not None
    # The descriptor stays open, and so the lock is held, until the process ends.
    fcntl.flock(os.open(directory, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)
    atexit.register(_remove, directory, lock, os.getpid())
    return directory


def directory_behind(link: Path) -> Path:
    """Return the private directory that a symbolic link refers to. The first caller creates both."""
    with link.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(OSError):
            target = link.readlink()
            if is_private(target):
                os.utime(target)  # in use, although it may contain no held lock
                return target
        made = private_directory()
        link.unlink(missing_ok=True)
        link.symlink_to(made)
        return made


def remove_abandoned() -> None:
    for parent in {tempfile.gettempdir(), _SHORT}:
        for directory in Path(parent).glob(f"{PREFIX}*"):
            with suppress(OSError):
                if is_private(directory) and _is_abandoned(directory):
                    shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    if time.time() - directory.stat().st_mtime < _SETTLED_S:  # noqa: TID251 - the clock of the file system
        return False
    for path in directory.glob("*.lock"):
        lock = locked(path)
        if lock is None:
            return False
        lock.close()
    return True


def locked(path: Path) -> IO[str] | None:
    """Lock a file, creating it if missing. Return None if another process holds the lock."""
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def is_private(directory: Path) -> bool:
    """Return whether a file or directory belongs to this user and other users have no access.

    Raises:
        OSError: If it does not exist.
    """
    facts = directory.lstat()
    return facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def _remove(directory: Path, lock: IO[str], pid: int) -> None:
    if os.getpid() == pid:  # forks of the process also reach this function when they end
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()
