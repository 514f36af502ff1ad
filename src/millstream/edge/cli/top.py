"""The command ``millstream top``: shows the activity of an application on this host in a table that is refreshed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.core.model.errors import ControlError
from millstream.core.runtime.lifecycle import FINAL
from millstream.edge.cli.command_options import (
    RunningApp,
    StateDir,
    home_of,
    reporting_errors,
)

if TYPE_CHECKING:
    from millstream.edge.status.application_status import Status

_WHOLE_LINES: Final = 10_000
"""The width of a file or a pipe, where nothing is wrapped or cut."""


def top(
    application_id: RunningApp,
    *,
    interval: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds between refreshes.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the table once, and exit.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Show the activity of a running application, until it ends or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from millstream.edge.cli.top_table import drawn
    from millstream.edge.control.control_client import send

    with reporting_errors("top"):
        home = home_of(application_id, state_dir)
        status = send(home, application_id, "status")
        if once or not sys.stdout.isatty():
            Console(width=None if sys.stdout.isatty() else _WHOLE_LINES).print(drawn(application_id, status))
            return
        with Live(drawn(application_id, status), auto_refresh=False, screen=False) as live:
            for status in later_statuses(home, application_id, interval_s=interval):
                live.update(drawn(application_id, status), refresh=True)
        typer.echo(f"application {application_id!r} has ended")


def later_statuses(home: Path, application_id: str, *, interval_s: float) -> Iterator[Status]:
    """Yield the status of an application at an interval, until it ends.

    Raises:
        ControlError: If it ended without deleting its control file, such as a killed application.
    """
    from millstream.edge.control.control_client import send
    from millstream.edge.control.control_file import has_ended_in_order

    while True:
        time.sleep(interval_s)  # the interval that the user has chosen
        try:
            status = send(home, application_id, "status")
        except ControlError:
            if has_ended_in_order(home):
                return
            raise
        yield status
        if status.state in FINAL:
            return
