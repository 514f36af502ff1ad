"""Environment variables such as ``MILLSTREAM_KAFKA__SASL_USERNAME``, which set one entry of a dictionary setting."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_settings import BaseSettings, EnvSettingsSource

from millstream.core.model.errors import SettingsError

PREFIX: Final = "MILLSTREAM_"
_NESTED: Final = "__"
_DOTTED: Final = ("kafka", "consumer", "producer")
"""Settings of which a variable may set one entry. ``spark`` is none: Spark's names are case-sensitive, such as ``memoryOverhead``."""
_OTHERS: Final = ("config", "cache_dir", "class_archives", "executor_pid", "ivy_settings", "kafka_jars")
"""Names of variables that are not settings. Those of this project's tests begin with ``MILLSTREAM_TEST_``."""
_OF_KUBERNETES: Final = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""Kubernetes sets such variables for a service whose name begins with ``millstream``, and ``..._PORT`` to a URL."""


def settings_file() -> str | None:
    """Return the path of the TOML file in MILLSTREAM_CONFIG; None if it is not set.

    Raises:
        SettingsError: If the file does not exist or cannot be read.
    """
    file = os.environ.get(f"{PREFIX}CONFIG")
    if file is None:
        return None
    origin = "(from the environment variable MILLSTREAM_CONFIG)"
    try:
        Path(file).open("rb").close()
    except FileNotFoundError:
        raise SettingsError(f"the settings file {file!r} does not exist {origin}") from None
    except OSError as error:
        raise SettingsError(
            f"the settings file {file!r} cannot be read: {error.strerror or error} {origin}"
        ) from None
    return file


def nested(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the dictionaries of settings that environment variables set entry by entry.

    In the names of entries, an underscore stands for a dot. A third part, ``__FILE`` or ``__ENV``, makes the value a reference to a secret.

    Example:
        >>> nested({"MILLSTREAM_KAFKA__SASL_USERNAME": "orders", "MILLSTREAM_KAFKA__SASL_PASSWORD__FILE": "/run/secrets/kafka"})
        {'kafka': {'sasl.username': 'orders', 'sasl.password': {'file': '/run/secrets/kafka'}}}
    """
    found: dict[str, Any] = {}
    for variable, value in variables.items():
        setting, *path = variable.removeprefix(PREFIX).split(_NESTED)
        if not variable.startswith(PREFIX) or setting.lower() not in _DOTTED or not all(path) or not path:
            continue
        name, *reference = (part.lower() for part in path)
        settings = found.setdefault(setting.lower(), {})
        settings[name.replace("_", ".")] = {".".join(reference): value} if reference else value
    return found


def variables_of(settings: type[BaseSettings]) -> EnvSettingsSource:
    """Return the settings in environment variables, without the URLs that Kubernetes sets, as for a service ``millstream-metrics``."""
    source = EnvSettingsSource(settings)
    source.env_vars = {
        name: value for name, value in source.env_vars.items() if not _is_link(name, value or "")
    }
    return source


def _is_link(name: str, value: str) -> bool:
    return name.endswith("port") and "://" in value


def check_variables(variables: Mapping[str, str], settings: Collection[str]) -> None:
    """Refuse variables with the prefix that set nothing, because a misspelt name would go unnoticed, and two for one entry."""
    by_entry: dict[tuple[str, ...], str] = {}
    for variable in sorted(variables):
        name = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or name.startswith("TEST_") or _OF_KUBERNETES.fullmatch(name):
            continue
        setting, separator, entry = name.lower().partition(_NESTED)
        if separator and setting in settings:
            if setting not in _DOTTED or not all(entry.split(_NESTED)):
                raise SettingsError(_no_entry(variable, setting))
            other = by_entry.setdefault((setting, entry.split(_NESTED)[0]), variable)
            if other != variable:
                raise SettingsError(
                    f"the environment variables {other!r} and {variable!r} set the same entry; unset one of them"
                )
        elif separator or setting not in (*settings, *_OTHERS):
            if _is_link(setting, variables[variable]):
                continue
            raise SettingsError(_unknown(variable, setting, settings))


def _no_entry(variable: str, setting: str) -> str:
    if setting == "spark":
        return (
            f"the environment variable {variable!r} sets no entry, because names of Spark's settings are case-sensitive: write them as JSON, as "
            f'{PREFIX}SPARK=\'{{"spark.executor.memoryOverhead": "1g"}}\''
        )
    return (
        f"the environment variable {variable!r} sets no entry: only {', '.join(_DOTTED)} can be set entry by entry, as "
        f"{PREFIX}KAFKA__ACKS; write the other settings as JSON, as {PREFIX}{setting.upper()}={{...}}"
    )


def _unknown(variable: str, setting: str, settings: Collection[str]) -> str:
    close = difflib.get_close_matches(setting, [*settings, *_OTHERS], n=1, cutoff=0.5)
    hint = f"did you mean {PREFIX + close[0].upper()!r}?" if close else "unset it or rename it"
    return f"there is no setting for the environment variable {variable!r}; {hint}"
