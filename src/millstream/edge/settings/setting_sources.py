"""The sources of settings: keywords, the environment and the settings file, merged entry by entry.

pydantic-settings would merge dictionaries in dictionaries too: a reference to a secret in the environment and another in the file would
become one with both parts, and an entry of ``app_config`` would keep parts of the entry that it replaces.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from millstream.edge.settings.client_settings import in_one_spelling
from millstream.edge.settings.environment_variables import PREFIX

_OF_CLIENTS: Final = ("kafka", "consumer", "producer")


class EntryByEntry(PydanticBaseSettingsSource):
    """A source without the entries of dictionaries that a source before it has set."""

    def __init__(self, settings_cls: type[BaseSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        return {name: self._without_set_entries(name, value) for name, value in self._source().items()}

    def _without_set_entries(self, name: str, value: Any) -> Any:
        known = self.current_state.get(name)
        if isinstance(value, dict) and name in _OF_CLIENTS:
            value = in_one_spelling(value)
        if not (isinstance(value, dict) and isinstance(known, dict)):
            return value
        return {entry: each for entry, each in value.items() if entry not in known}


def servers_are_named() -> bool:
    """Return whether the environment or the settings file sets ``bootstrap_servers``; True if the file cannot be read.

    Its errors are those of whoever reads the settings next.
    """
    if any(name.upper() == f"{PREFIX}BOOTSTRAP_SERVERS" for name in os.environ):
        return True
    if (file := os.environ.get(f"{PREFIX}CONFIG")) is None:
        return False
    try:
        return "bootstrap_servers" in tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
