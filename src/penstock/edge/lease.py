"""The lease: who may touch an application's state on this host.

One application at a time works on a state directory: two would take each other's micro-batches and local copies, and a
reset or a rescale under a running application would pull its checkpoint away. The lease is a lock of the operating system
on the file ``lock`` in the application's directory, held as long as the process that took it lives: a crash, even SIGKILL,
gives it back, so there is nothing to clean up and no time-out to wait for.

It says nothing about other hosts. A group without members, as this one, gives Kafka nothing to ask either; under exactly once
the marks do (see ``ownership``).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from penstock.core.model.errors import ApplicationRunningError, SettingsError
from penstock.drivers.private import make_private

_FILE = "lock"


class Lease:
    """The right to work on one application's directory; made by :meth:`take`, given back by :meth:`release`."""

    def __init__(self, file: IO[str], holder: Mapping[str, Any]) -> None:
        self._file = file
        self._holder = dict(holder)

    @classmethod
    def take(cls, home: Path, application_id: str, purpose: str) -> Lease:
        """Take the lease, or say who has it.

        Args:
            home: The application's directory, ``<state_dir>/<application id>``; made if it is not there.
            application_id: For the message of the error.
            purpose: What the holder does, as in "running", for others to read.

        Raises:
            ApplicationRunningError: If another process, or another application of this process, holds it.
            SettingsError: If the directory cannot be written or locked.
        """
        try:
            make_private(home)
            file = (home.absolute() / _FILE).open("a+", encoding="utf-8")
        except OSError as error:
            raise _unusable(home, error) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            file.close()
            raise ApplicationRunningError(
                f"application {application_id!r} is in use: {holder} holds {home / _FILE}. Stop it first; it lets go when it "
                "ends, however it ends. To run a second application beside it, give that one another application id"
            ) from None
        except OSError as error:
            file.close()
            raise _unusable(home, error) from None
        lease = cls(file, {"pid": os.getpid(), "host": socket.gethostname(), "purpose": purpose})
        lease.begin(_read(file).get("begun", ""))
        return lease

    @property
    def begun(self) -> str:
        """The id that a checkpoint to be begun was given here last; empty if there was none."""
        return str(self._holder["begun"])

    def begin(self, checkpoint: str) -> None:
        """Remember the id of a checkpoint before it is begun: a start that is killed in between is continued under it."""
        self._holder["begun"] = checkpoint
        self._file.truncate(0)
        json.dump(self._holder, self._file)
        self._file.flush()

    @property
    def held(self) -> bool:
        """Whether it has not been given back."""
        return not self._file.closed

    @property
    def home(self) -> Path:
        """The application's directory."""
        return Path(self._file.name).parent

    def release(self) -> None:
        """Give the lease back; doing it twice is harmless."""
        self._file.close()


def _holder(file: IO[str]) -> str:
    """Read who has the lease; the file is empty for a moment while it changes hands."""
    try:
        found = _read(file)
        return f"process {found['pid']} on {found['host']} ({found['purpose']})"
    except KeyError:
        return "another process"


def _read(file: IO[str]) -> dict[str, Any]:
    """Read what the last holder has written; nothing if that is not whole."""
    file.seek(0)
    try:
        return dict(json.loads(file.read()))
    except ValueError:
        return {}


def _unusable(home: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"the directory {str(home)!r} of the application cannot be written and locked ({error.strerror or error}): set "
        "state_dir to a directory on a local disk that belongs to the user who runs the application"
    )
