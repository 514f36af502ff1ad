"""Environment variables such as ``MILLSTREAM_KAFKA__SASL_USERNAME``, which set one entry of a dictionary setting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from millstream.core.model.errors import SettingsError

PREFIX: Final = "MILLSTREAM_"
_NESTED: Final = "__"
_DOTTED: Final = ("kafka", "consumer", "producer", "spark")


def settings_file() -> str | None:
    """Return the path of the TOML file in MILLSTREAM_CONFIG; None if it is not set.

    Raises:
        SettingsError: If the file does not exist.
    """
    file = os.environ.get(f"{PREFIX}CONFIG")
    if file is not None and not Path(file).exists():
        raise SettingsError(
            f"the settings file {file!r} does not exist (from the environment variable MILLSTREAM_CONFIG)"
        )
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
