"""The lease: the exclusive right to an application's state on this host.

Only one process at a time may work on an application's directory. Two would overwrite each other's micro-batches and local copies, and a
reset or a rescale would remove the checkpoint of a running application. The lease is a lock of the operating system on the file
``lock`` in the application's directory. It ends with the process, even after SIGKILL: there is nothing to clean up, and no timeout to
wait for.

The lease does not protect against other hosts. Under at least once, the election does (see ``single_driver``); under exactly once, the marks
do (see ``checkpoint_ownership``).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO, TypedDict

from millstream.core.model.errors import ApplicationRunningError
from millstream.drivers.forked_children import close_in_children
from millstream.drivers.private import make_private
from millstream.edge.checkpoint.disk_space import unwritable

_FILE = "lock"


class _Holder(TypedDict, total=False):
    """The content of the file: the current or last holder of the lease, and the id from :meth:`Lease.begin`."""

    pid: int
    host: str
    purpose: str
    begun: str


class Lease:
    """The exclusive right to work on an application's directory; taken by :meth:`take`, released by :meth:`release`."""

    def __init__(self, path: Path, file: IO[str], holder: _Holder) -> None:
        self._path = path
        self._file = file
        self._holder = holder
        close_in_children(file)

    @classmethod
    def take(cls, home: Path, application_id: str, purpose: str) -> Lease:
        """Take the lease, or raise an error that names the holder.

        Args:
            home: The application's directory, ``<state_dir>/<application id>``; created if missing.
            purpose: What the holder does, such as "running", for the errors of other processes.

        Raises:
            ApplicationRunningError: If another process, or another application of this process, holds it.
        """
        try:
            make_private(home)
            path = home.absolute() / _FILE
            path.touch()
            file = path.open("r+", encoding="utf-8")
        except OSError as error:
            raise unwritable(home / _FILE, error) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            file.close()
            raise ApplicationRunningError(
                f"application {application_id!r} is in use: {holder} holds {home / _FILE}. Stop it first; the lock is released when "
                "it ends. To run a second application, use another application id"
            ) from None
        except OSError as error:
            file.close()
            raise unwritable(home / _FILE, error) from None
        begun = _read(file).get("begun", "")
        own: _Holder = {"pid": os.getpid(), "host": socket.gethostname(), "purpose": purpose, "begun": begun}
        lease = cls(path, file, own)
        lease._write()
        return lease

    @property
    def begun_checkpoint(self) -> str:
        """The id that a start on this host chose for a new checkpoint; empty if there is none."""
        return self._holder["begun"]

    def begin(self, checkpoint: str) -> None:
        """Store the id of a new checkpoint before it begins, so that a start after a crash uses the same id.

        Raises:
            SettingsError: If the file cannot be written; the earlier id stays.
            ApplicationRunningError: If another driver has replaced or overwritten the file; what it has written stays.
        """
        try:
            self._check_own()
        except OSError as error:
            self.release()
            raise unwritable(self._path, error) from None
        self._holder["begun"] = checkpoint
        self._write()

    def _check_own(self) -> None:
        """Check that the file still is the one that this lease has locked, with the record of this process.

        It is another one if somebody has deleted the directory, and has another record if its file system does not support locks.
        """
        with self._path.open(encoding="utf-8") as file:
            in_place, found = os.path.sameopenfile(file.fileno(), self._file.fileno()), _read(file)
            if in_place and found in ({}, self._holder):
                return
            holder = _holder(file)
        self.release()
        raise ApplicationRunningError(
            f"another driver has taken over {self._path}: {holder}. The directory was deleted while this driver was using it, or is on a "
            "file system without locks. Run only one of them, with state_dir on a local disk"
        )

    def _write(self) -> None:
        try:
            self._file.seek(0)
            json.dump(self._holder, self._file)
            self._file.flush()
            self._file.truncate()  # only now, because overwriting existing bytes succeeds even on a full disk
        except OSError as error:
            with suppress(OSError):
                self._file.close()
            raise unwritable(self._path, error) from None

    @property
    def is_held(self) -> bool:
        return not self._file.closed

    @property
    def home(self) -> Path:
        return self._path.parent

    def release(self) -> None:
        """Release the lease; releasing it twice is harmless."""
        self._file.close()


def _holder(file: IO[str]) -> str:
    """Read who holds the lease; the file is briefly incomplete while the holder changes."""
    try:
        found = _read(file)
        return f"process {found['pid']} on {found['host']} ({found['purpose']})"
    except KeyError:
        return "another process"


def _read(file: IO[str]) -> _Holder:
    """Read the last holder's entry; empty if it is incomplete."""
    file.seek(0)
    try:
        found: _Holder = json.loads(file.read())
        return found
    except ValueError:
        return {}
