"""The control file: where a running application listens for commands of other processes on this host.

The application listens on a Unix socket for the processes that Spark runs for it. It writes the path and the key of this socket to
``control.json`` beside its lease. Only the application's user can read the file, so only a user who may change the application's state
may send commands. The application deletes the file when it ends. After a crash, the file names a process that no longer exists; the next
start overwrites it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from millstream.core.model.errors import ControlError
from millstream.drivers.peer_processes import is_alive
from millstream.drivers.spark.control import ControlAddress
from millstream.edge.checkpoint.disk_space import unwritable

_FILE: Final = "control.json"
_RELEASE_S: Final = 1.0


def write_control_file(home: Path, address: ControlAddress) -> None:
    """Write where the application listens; only its user can read the file. The caller holds the lease.

    Raises:
        SettingsError: If the file cannot be written.
    """
    written = {
        "socket": address.path,
        "key": address.key.hex(),
        "pid": os.getpid(),
        "on": socket.gethostname(),
    }
    write_private_file(home / _FILE, json.dumps(written))


def delete_control_file(home: Path) -> None:
    """Delete the file; deleting it twice is harmless."""
    (home / _FILE).unlink(missing_ok=True)


def has_ended_in_order(home: Path) -> bool:
    """Return whether an application that does not answer has ended in order, and not been killed: it has deleted the file."""
    if (home / _FILE).exists():
        # It stops answering before it deletes the file, and another process cannot wait for that.
        time.sleep(_RELEASE_S)
    return not (home / _FILE).exists()


def read_control_file(home: Path, application_id: str) -> ControlAddress:
    """Return where an application on this host listens.

    Raises:
        ControlError: If the application does not run on this host under this user.
    """
    file = f"{home}/{_FILE}"
    try:
        state = os.stat(file)
        address, pid, host = _content(file, state.st_ino, state.st_mtime_ns)
    except FileNotFoundError:
        raise ControlError(
            f"application {application_id!r} is not running with this state directory: there is no {file!r}. Start it, or "
            "pass the application's --state-dir"
        ) from None
    except PermissionError:
        raise ControlError(
            f"{file!r} may not be read by this user; run commands as the user who runs application {application_id!r}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(
            f"{file!r} cannot be read ({error!r}); start application {application_id!r} again, which overwrites it"
        ) from None
    if host != socket.gethostname():
        raise ControlError(
            f"application {application_id!r} runs on host {host!r}, and accepts commands only there: run this command on that host"
        )
    if not is_alive(pid):
        raise no_answer(home, application_id)
    return address


@lru_cache
def _content(file: str, inode: int, mtime_ns: int) -> tuple[ControlAddress, int, str]:
    """Return the address, the process id and the host in a control file. A new content is always a new file."""
    found = json.loads(Path(file).read_text(encoding="utf-8"))
    return ControlAddress(found["socket"], bytes.fromhex(found["key"])), int(found["pid"]), found["on"]


def no_answer(home: Path, application_id: str) -> ControlError:
    return ControlError(
        f"application {application_id!r} does not answer: it has ended without deleting {str(home / _FILE)!r}, perhaps "
        "because it was killed. Start it again, which overwrites the file"
    )


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
