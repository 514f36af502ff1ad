"""The commands that another process can send to a running application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from millstream.core.model.errors import ControlError
from millstream.core.topology.analysis.ranges import Workers
from millstream.edge.status.application_status import Status


class Controllable(Protocol):
    """An application that takes commands."""

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None: ...

    def resume(
        self, topics: Collection[str] | None = None, *, subtopologies: Collection[int] | None = None
    ) -> None: ...

    def throttle(self, topic: str, records_per_second: int | None) -> None: ...

    def parallelism(self, workers: Workers) -> None: ...

    def status(self) -> Status: ...


def executed(application: Controllable, command: str, arguments: Mapping[str, object]) -> Status:
    """Execute a command of another process.

    Args:
        command: ``pause``, ``resume``, ``throttle``, ``parallelism`` or ``status``.

    Returns:
        The status afterwards.

    Raises:
        ControlError: If the command cannot be executed.
    """
    commands: dict[str, Callable[..., object]] = {
        "pause": application.pause,
        "resume": application.resume,
        "throttle": application.throttle,
        "parallelism": application.parallelism,
        "status": lambda: None,
    }
    if command not in commands:
        raise ControlError(
            f"the application does not know the command {command!r}: use the same version of Millstream on both sides"
        )
    commands[command](**arguments)
    return application.status()
