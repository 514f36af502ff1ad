"""Sends commands and questions to an application in another process of this host."""

from __future__ import annotations

from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any, Final

from millstream.edge.control.control_file import no_answer, read_control_file
from millstream.edge.status.application_status import Status

COMMAND: Final = "command"
"""The name of the request that :func:`send` makes."""


def send(home: Path, application_id: str, command: str, **arguments: object) -> Status:
    """Send a command to an application on this host.

    Args:
        command: ``pause``, ``resume``, ``throttle``, ``parallelism`` or ``status``.

    Returns:
        The application's status afterwards.

    Raises:
        ControlError: If the application does not answer, or cannot execute the command.
    """
    status: Status = ask(home, application_id, COMMAND, (command, arguments))
    return status


def ask(home: Path, application_id: str, question: str, data: object) -> Any:
    """Ask an application on this host.

    Raises:
        MillstreamError: The error that the application raised.
    """
    address = read_control_file(home, application_id)
    try:
        answer = address.ask(question, data)
    except AuthenticationError:  # another process now listens on this socket
        answer = None
    if answer is None:
        raise no_answer(home, application_id)
    return answer
