"""Contact: how a command in another process reaches an application that is at work on this host.

The application listens on a Unix socket for the processes that Spark runs for it. It writes path and key of that
socket to ``control.json`` beside its lease, readable by its user alone: who may touch the application's state may give it
orders, nobody else. The file goes when the application ends; one that a crash has left behind names a process that is gone,
and the next start writes it anew.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any, Final, Protocol

from millstream.core.model.errors import ControlError
from millstream.drivers.spark.control import ControlAddress
from millstream.edge.checkpoint.disk_space import unwritable
from millstream.edge.status.application_status import Status

ORDER: Final = "order"
"""The question that :func:`send` asks, and :func:`carried_out` answers."""

_FILE = "control.json"


class Steerable(Protocol):
    """What can be ordered of an application."""

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None:
        """Stop reading topics."""

    def resume(
        self, topics: Collection[str] | None = None, *, subtopologies: Collection[int] | None = None
    ) -> None:
        """Read topics again."""

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        """Limit the records per second of a topic."""

    def parallelism(self, workers: int) -> None:
        """Process each partition by another number of workers."""

    def status(self) -> Status:
        """Say what it is doing."""


def announce(home: Path, address: ControlAddress) -> None:
    """Write where the application listens, for its user alone to read.

    Args:
        home: The application's directory, whose lease is held.
        address: Where it listens.

    Raises:
        SettingsError: If the file cannot be written.
    """
    partial = home / f"{_FILE}.partial"
    contact = {
        "socket": address.path,
        "key": address.key.hex(),
        "pid": os.getpid(),
        "on": socket.gethostname(),
    }
    try:
        partial.unlink(missing_ok=True)
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w", encoding="utf-8") as written:
            json.dump(contact, written)
        partial.replace(home / _FILE)
    except OSError as error:
        raise unwritable(home / _FILE, error) from None


def withdraw(home: Path) -> None:
    """Take the announcement back; doing it twice is harmless."""
    (home / _FILE).unlink(missing_ok=True)


def carried_out(application: Steerable, order: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Do what another process has ordered.

    Args:
        application: Who is to obey.
        order: ``pause``, ``resume``, ``throttle``, ``parallelism`` or ``status``.
        data: Its arguments.

    Returns:
        The status afterwards, as plain data.

    Raises:
        ControlError: If the order cannot be carried out.
    """
    orders: dict[str, Callable[..., object]] = {
        "pause": application.pause,
        "resume": application.resume,
        "throttle": application.throttle,
        "parallelism": application.parallelism,
        "status": lambda: None,
    }
    if order not in orders:
        raise ControlError(
            f"the application does not know the order {order!r}: use the same version of Millstream on both sides"
        )
    orders[order](**data)
    return asdict(application.status())


def send(home: Path, application_id: str, order: str, **data: Any) -> dict[str, Any]:
    """Return an order to an application that is at work on this host.

    Args:
        home: The application's directory.
        application_id: For the messages of errors.
        order: ``pause``, ``resume``, ``throttle``, ``parallelism`` or ``status``.
        data: Its arguments.

    Returns:
        The application's status afterwards, as plain data.

    Raises:
        ControlError: If nobody hears the order, or it cannot be carried out.
    """
    status: dict[str, Any] = ask(home, application_id, ORDER, (order, data))
    return status


def ask(home: Path, application_id: str, question: str, data: Any) -> Any:
    """Ask an application that is at work on this host.

    Args:
        home: The application's directory.
        application_id: For the messages of errors.
        question: The name of the question.
        data: What it is about.

    Raises:
        ControlError: If nobody answers.
        MillstreamError: What the application raised.
    """
    address = _address(home, application_id)
    try:
        answer = address.ask(question, data)
    except AuthenticationError:  # somebody else listens there by now
        answer = None
    if answer is None:
        raise _gone(home, application_id)
    return answer


def _address(home: Path, application_id: str) -> ControlAddress:
    file = home / _FILE
    try:
        contact = json.loads(file.read_text(encoding="utf-8"))
        address = ControlAddress(contact["socket"], bytes.fromhex(contact["key"]))
        pid, host = int(contact["pid"]), contact["on"]
    except FileNotFoundError:
        raise ControlError(
            f"application {application_id!r} is not running with this state directory: there is no {str(file)!r}. Start it, or "
            "give --state-dir as the application has it"
        ) from None
    except PermissionError:
        raise ControlError(
            f"{str(file)!r} may not be read by this user; give orders as the user who runs application {application_id!r}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(
            f"{str(file)!r} cannot be read ({error!r}); start application {application_id!r} again, which writes it anew"
        ) from None
    if host != socket.gethostname():
        raise ControlError(
            f"application {application_id!r} runs on host {host!r}, and takes orders there only: run this command on that host"
        )
    if not _is_alive(pid):
        raise _gone(home, application_id)
    return address


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's: the socket will tell
    return True


def _gone(home: Path, application_id: str) -> ControlError:
    return ControlError(
        f"application {application_id!r} does not answer: it has ended without taking back {str(home / _FILE)!r}, killed "
        "perhaps. Start it again; the file is written anew then"
    )
