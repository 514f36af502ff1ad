"""What the commands share: options, settings from options, and the display of errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.core.model.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.edge.settings.settings import Settings

RunningApp = Annotated[
    str, typer.Argument(metavar="APPLICATION_ID", help="An application that runs on this host.")
]
TopologyTarget = Annotated[
    str, typer.Argument(metavar="MODULE:ATTRIBUTE", help="A topology, such as examples.wordcount:topology.")
]
Servers = Annotated[
    str | None, typer.Option(help="Brokers, as host:port,host:port. Default: from the settings.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]


def _directory(text: str) -> Path:
    """Return a directory; refuse empty text, as of a variable that a script has not set: it would mean this directory."""
    if not text.strip():
        raise typer.BadParameter("it is empty; leave it out for the directory in the settings")
    return Path(text)


StateDir = Annotated[
    Path | None,
    typer.Option(
        parser=_directory,
        metavar="PATH",
        help="State directory of the application. Default: from the settings.",
    ),
]


def spark_master(text: str | None) -> str | None:
    """Return the Spark master of an option of a command without settings.

    Raises:
        typer.BadParameter: If it is none.
    """
    from pydantic_core import PydanticCustomError

    from millstream.edge.settings.setting_types import master_of

    try:
        return None if text is None else master_of(text)
    except PydanticCustomError as error:
        raise typer.BadParameter(error.message()) from None


@contextmanager
def reporting_errors(command: str) -> Iterator[None]:
    """Show errors of Millstream in one line, and exit with code 1."""
    try:
        yield
    except MillstreamError as error:
        from millstream.edge.status.log_output import report

        if not report(error):
            typer.echo(f"millstream {command}: {error}", err=True)
        raise typer.Exit(1) from None


def settings_of(**given: object) -> Settings:
    """Return settings from options. None stands for an omitted option."""
    from millstream.edge.settings.settings_loading import settings_from

    return settings_from({name: value for name, value in given.items() if value is not None})


def settings_without_broker(**given: object) -> Settings:
    """Return settings from options, for a command that uses no broker; see :func:`settings_of`.

    Raises:
        SettingsError: If a setting is invalid.
    """
    return settings_of(bootstrap_servers="not needed for this", **given)


def home_of(application_id: str, state_dir: Path | None) -> Path:
    """Return the directory of an application on this host; ``state_dir`` is an option.

    Raises:
        SettingsError: If the id or a setting is invalid.
    """
    from millstream.core.model.topics import checked_name

    return settings_without_broker(state_dir=state_dir).home(checked_name(application_id, "application"))
