"""Creates settings from keywords, with errors that name the correct form."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import SettingsError as UnreadableSettingsError

from millstream.core.model.errors import SettingsError
from millstream.edge.settings.client_settings import SECRET
from millstream.edge.settings.environment_variables import PREFIX, check_variables
from millstream.edge.settings.settings import Settings

_TYPE: Final = re.compile(r"constrained-\w+|literal\[.*\]|dict\[.*\]")
"""A part of the location of a problem that is one of several types of a setting."""
_MAY_HOLD_SECRETS: Final = ("kafka", "consumer", "producer", "spark", "app_config")


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Return the validated settings.

    Raises:
        SettingsError: If a setting does not exist or has an invalid value; the message names the correct form.
    """
    for name in given:
        check_name(name)
    check_variables(os.environ, Settings.model_fields)
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError(_explanation(error.errors())) from None
    except UnreadableSettingsError as error:
        raise SettingsError(_no_json(str(error))) from None
    except ValueError as error:
        file = os.environ.get(f"{PREFIX}CONFIG")
        raise SettingsError(f"the settings file {file!r} (MILLSTREAM_CONFIG) is not TOML: {error}") from None


def _no_json(problem: str) -> str:
    """Explain pydantic's error about an environment variable; it names the setting in quotes."""
    named = re.search(r'"(\w+)"', problem)
    variable = f"{PREFIX}{named[1].upper()}" if named else f"{PREFIX}..."
    return (
        f'the environment variable {variable!r} is not JSON; write it as {variable}=\'{{"name": "value"}}\''
    )


def check_name(name: str) -> None:
    """Check that there is such a setting.

    Raises:
        SettingsError: If there is none; the message names a similar one.
    """
    if name not in Settings.model_fields:
        raise SettingsError(_unknown(name))


def _unknown(name: str) -> str:
    known = list(Settings.model_fields)
    close = difflib.get_close_matches(name.replace(".", "_"), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(known))}."
    return f"there is no setting {name!r}; {hint} Settings of Kafka's clients go into kafka={{...}}, consumer={{...}} or producer={{...}}"


def _explanation(problems: Sequence[Any]) -> str:
    """Explain problems: by setting, without the types that it may have, and without settings of which a part is wrong."""
    by_name: dict[str, list[Any]] = {}
    for problem in problems:
        parts = [str(part) for part in problem["loc"] if not _TYPE.fullmatch(str(part))]
        by_name.setdefault(".".join(parts), []).append(problem)
    wrong = [name for name in by_name if not any(other.startswith(f"{name}.") for other in by_name)]
    return "; ".join(_problem_text(name, by_name[name]) for name in wrong)


def _problem_text(name: str, problems: Sequence[Any]) -> str:
    problem = problems[0]
    message = ", or ".join(dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in problems))
    if not name:
        return f"the settings do not fit together: {message}"
    if problem["type"] == "missing":
        return f"the setting {name!r} is missing ({Settings.model_fields[name].description}). Set it as a keyword, as {PREFIX}{name.upper()}, or in the settings file"
    if problem["type"] == "extra_forbidden":
        return _unknown(name)
    hidden = SECRET.search(name) or name.split(".")[0] in _MAY_HOLD_SECRETS
    shown = "(not shown)" if hidden else repr(problem.get("input"))
    return f"the setting {name!r} cannot be {shown}: {message}"
