"""Creates settings from keywords, with errors that name the correct form."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import SettingsError as UnreadableSettingsError

from millstream.core.model.errors import SettingsError
from millstream.edge.settings.client_settings import SECRET
from millstream.edge.settings.environment_variables import PREFIX, check_variables
from millstream.edge.settings.settings import Settings

_MAY_HOLD_SECRETS: Final = ("kafka", "consumer", "producer", "spark", "app_config")


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Return the validated settings.

    Raises:
        SettingsError: If a setting does not exist or has an invalid value; the message names the correct form.
    """
    for name in given:
        if name not in Settings.model_fields:
            raise SettingsError(_unknown(name))
    check_variables(os.environ, Settings.model_fields)
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_explained(problem) for problem in error.errors())) from None
    except UnreadableSettingsError as error:
        raise SettingsError(
            f'{error}; write it as JSON, for example MILLSTREAM_KAFKA=\'{{"acks": "all"}}\''
        ) from None
    except ValueError as error:
        file = os.environ.get(f"{PREFIX}CONFIG")
        raise SettingsError(f"the settings file {file!r} (MILLSTREAM_CONFIG) is not TOML: {error}") from None


def _unknown(name: str) -> str:
    known = list(Settings.model_fields)
    close = difflib.get_close_matches(name.replace(".", "_"), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(known))}."
    return f"there is no setting {name!r}; {hint} Settings of Kafka's clients go into kafka={{...}}, consumer={{...}} or producer={{...}}"


def _explained(problem: Any) -> str:
    name, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
    if not name:
        return f"the settings do not fit together: {message}"
    if problem["type"] == "missing":
        return f"the setting {name!r} is missing ({Settings.model_fields[name].description}). Set it as a keyword, as {PREFIX}{name.upper()}, or in the settings file"
    if problem["type"] == "extra_forbidden":
        return _unknown(name)
    hidden = SECRET.search(name) or name.split(".")[0] in _MAY_HOLD_SECRETS
    shown = "(not shown)" if hidden else repr(problem.get("input"))
    return f"the setting {name!r} cannot be {shown}: {message}"
