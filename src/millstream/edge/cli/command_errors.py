"""What the commands share: settings from options, and errors of Millstream in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from millstream.core.model.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.edge.settings.settings import Settings


@contextmanager
def reporting_errors(command: str) -> Iterator[None]:
    """Print an error of Millstream in one line, and exit with code 1."""
    try:
        yield
    except MillstreamError as error:
        typer.echo(f"millstream {command}: {error}", err=True)
        raise typer.Exit(1) from None


def settings_of(**given: object) -> Settings:
    """Return settings from options; None is an option that was not given.

    Raises:
        SettingsError: If a setting is wrong.
    """
    from millstream.edge.settings.settings_loading import settings_from

    return settings_from({name: value for name, value in given.items() if value is not None})
