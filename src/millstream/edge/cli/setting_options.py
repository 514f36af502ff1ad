"""Reads settings from the options ``--set`` and ``--bootstrap-servers``."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Literal, get_args, get_origin

from millstream.core.model.errors import SettingsError
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import check_name


def settings_in(words: Sequence[str], bootstrap_servers: str | None = None) -> dict[str, Any]:
    """Return settings from options: ``name=value`` each, and the brokers. Dictionaries and lists are JSON, as in environment variables.

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
