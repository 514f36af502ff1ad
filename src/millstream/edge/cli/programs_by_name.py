"""Finds or creates the application of a target, for the command line."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from millstream.core.model.errors import SettingsError
from millstream.edge.application.application import Application
from millstream.edge.cli.describe_command import as_topology, resolved
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import check_name


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
    found = resolved(target)
    if isinstance(found, Application):
        if given or application_id is not None:
            raise SettingsError(f"{target!r} is an application, which has its id and its settings; give none")
        return found
    name = name_of(target) if application_id is None else application_id
    return Application(name, as_topology(found, target), **given)


def name_of(target: str) -> str:
    """Return the default application id of a target: the name of its module.

    Example:
        >>> name_of("examples.word_count:topology")
        'word-count'
    """
    return target.partition(":")[0].rpartition(".")[2].replace("_", "-")


def settings_in(words: Sequence[str], bootstrap_servers: str | None = None) -> dict[str, Any]:
    """Parse settings of the form ``name=value``. Dictionaries and lists are JSON, as in environment variables.

    Args:
        bootstrap_servers: The brokers, if they are given by their own option.

    Raises:
        SettingsError: If a setting does not have this form, does not exist, or is given twice.

    Example:
        >>> settings_in(["processing_guarantee=exactly_once", 'kafka={"client.rack": "b"}'])
        {'processing_guarantee': 'exactly_once', 'kafka': {'client.rack': 'b'}}
    """
    found: dict[str, Any] = {} if bootstrap_servers is None else {"bootstrap_servers": bootstrap_servers}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise SettingsError(f"{word!r} is not a setting; write name=value")
        check_name(name)
        if name in found:
            raise SettingsError(f"the setting {name!r} is given twice")
        found[name] = _parsed(name, value)
    return found


def _parsed(name: str, text: str) -> Any:
    annotation = Settings.model_fields[name].annotation
    if not _contains(annotation, (dict, list)):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if any(get_origin(each) is Literal for each in get_args(annotation)):
            return text  # one of its types is text
        form = '{"name": "value"}' if get_origin(annotation) is dict else '["name"]'
        raise SettingsError(
            f"the setting {name!r} is not JSON ({error}); write it as --set '{name}={form}'"
        ) from None


def _contains(annotation: Any, kinds: Collection[type]) -> bool:
    """Return whether a type, or one of its parts, is one of some containers."""
    return get_origin(annotation) in kinds or any(_contains(part, kinds) for part in get_args(annotation))
