"""Checks for packages that an extra of Millstream installs, and errors that name the missing package."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from millstream.core.model.errors import SettingsError

SPARK: Final = ("pyspark", "pyarrow", "numpy", "pandas", "google.protobuf")
"""Modules that running on Spark needs; PySpark declares only some of them."""

_DISTRIBUTIONS: Final = {"google.protobuf": "protobuf", "google": "protobuf", "py4j": "pyspark"}


def check_spark_packages() -> None:
    """Refuse to run on Spark without the packages that its workers import.

    Raises:
        SettingsError: If a package is missing; without this check, workers would end without an error message.
    """
    missing = [module for module in SPARK if not is_installed(module)]
    if missing:
        raise SettingsError(_message("An application on Spark", missing[0]))


def explained(error: ModuleNotFoundError, user: str) -> ModuleNotFoundError:
    """Return an import error that names the extra to install, if an extra of Millstream contains the package."""
    name = error.name or ""
    if name.split(".")[0] not in {module.split(".")[0] for module in (*SPARK, "py4j")}:
        return error
    return ModuleNotFoundError(_message(user, name), name=name)


def _message(user: str, module: str) -> str:
    package = _DISTRIBUTIONS.get(module, module.split(".")[0])
    return (
        f"{user} needs the package {package}, which is not installed here: pip install 'millstream[spark]'; on a platform with "
        f"its own PySpark, pip install {package} alone"
    )


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
