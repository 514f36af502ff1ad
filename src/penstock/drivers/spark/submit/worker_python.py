"""The Python that a local Spark starts for its workers and helpers: this one, with the installed PySpark in front.

Spark puts ``pyspark.zip`` in front of ``PYTHONPATH``. Modules in an archive are compiled again by every process that imports
them, and Spark starts ten processes one after another until the first micro-batch. The package of which the archive was made
lies beside it, compiled.
"""

from __future__ import annotations

import os
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pyspark

from penstock.drivers.private import process_directory

_SCRIPT: Final = """#!/bin/sh
export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"
exec {python} "$@"
"""


def import_path() -> str:
    """Return where this program looks for modules, as ``PYTHONPATH`` says it."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def worker_python() -> str:
    """Return the command for workers and helpers: another Python that ``PYSPARK_PYTHON`` names, else a script before this one.

    The script is left out where it cannot be run (a directory of temporary files without the right to), and if ``SPARK_HOME``
    names another Spark than the installed one, whose archive belongs to it.
    """
    said = os.environ.get("PYSPARK_PYTHON") or sys.executable
    return _script() if said == sys.executable and _is_installed_spark() else said


def _is_installed_spark() -> bool:
    home = os.environ.get("SPARK_HOME")
    return not home or (Path(home) / "python").resolve() == Path(pyspark.__file__).parent.resolve() / "python"


@cache
def _script() -> str:
    script = process_directory() / "python"
    script.write_text(_SCRIPT.format(path=shlex.quote(import_path()), python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable
