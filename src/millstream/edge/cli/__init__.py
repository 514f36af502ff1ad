"""The command ``millstream``. This module must be importable without the extra ``cli``, because it explains how to install it."""

from __future__ import annotations

import io
import sys
from importlib import import_module

from millstream.edge.spark.required_packages import explained

_NEEDED = ("packaging", "rich", "typer")


def main() -> None:
    """Run the command line; if packages are missing, name them."""
    try:
        for name in _NEEDED:
            import_module(name)
        from millstream.edge.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"The command millstream needs {', '.join(_NEEDED)}, which are not installed (no module {error.name!r}). "
            "Install them with:\n\n    pip install 'millstream[cli]'\n"
        )
        sys.exit(1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a terminal may not be able to show the text of a record
    try:
        app()
    except ModuleNotFoundError as error:
        explanation = explained(error, "this command")
        if explanation is error:
            raise
        sys.stderr.write(f"millstream: {explanation}\n")
        sys.exit(1)
