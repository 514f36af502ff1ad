"""Finds or creates the application of a target, for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.core.model.errors import SettingsError
from millstream.edge.application.application import Application
from millstream.edge.cli.describe_command import called, load, topology_of


def application_of(target: str, application_id: str | None, given: Mapping[str, Any]) -> Application:
    """Return the application of a target.

    Args:
        target: ``module:attribute``: an application, or a topology, a builder, or a function without parameters that returns
            one.
        application_id: The id if an application is created here; None for the module's name.
        given: Settings for an application that is created here.

    Raises:
        SettingsError: If settings are invalid, or are given although the target is an application with its own settings.
        MillstreamError: If the target is none of these.
    """
    found = load(target)
    if callable(found) and not isinstance(found, type) and not isinstance(found, Application):
        made = called(found, target) if not hasattr(found, "build") else found
        found = made if isinstance(made, Application) else found
    if isinstance(found, Application):
        if given or application_id is not None:
            raise SettingsError(f"{target!r} is an application, which has its id and its settings; give none")
        return found
    return Application(application_id or name_of(target), topology_of(target), **given)


def name_of(target: str) -> str:
    """Return the default application id of a target: the name of its module."""
    return target.partition(":")[0].rpartition(".")[2].replace("_", "-")


def settings_in(words: list[str]) -> dict[str, str]:
    """Parse settings of the form ``name=value``.

    Example:
        >>> settings_in(["processing_guarantee=exactly_once"])
        {'processing_guarantee': 'exactly_once'}
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise SettingsError(f"{word!r} is not a setting; write name=value")
        found[name] = value
    return found
