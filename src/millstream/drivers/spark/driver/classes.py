"""The class archive of a JVM that this program starts for Spark."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from millstream.drivers.class_archive import ClassArchive
from millstream.drivers.java import look_for_java


def archive_options() -> str:
    """Return the JVM options, in command-line form, that use the class archive or record the loaded classes for it."""
    archive = _archive()
    return "" if archive is None else shlex.join(archive.options(note=True))


def keep_classes() -> None:
    """Start to create an archive of the JVM's loaded classes, if the JVM has recorded them. Returns immediately.

    No archive is created for a JVM whose class path contains more than Spark's jars: directories cannot be archived, and other jars may
    change.
    """
    archive, context = _archive(), SparkContext._active_spark_context
    if archive is None or not archive.is_recording or context is None:
        return
    with suppress(OSError, Py4JError):  # a JVM that has ended needs no archive
        jvm: Any = context._jvm
        class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
        if all(_is_archived(Path(entry)) for entry in class_path.split(os.pathsep)):
            archive.make(class_path)


def _is_archived(entry: Path) -> bool:
    return entry.parent == _jars() or not entry.exists()


@cache
def _archive() -> ClassArchive | None:
    java = look_for_java()[0]
    return None if java is None else ClassArchive("spark", java, _jars())


def _jars() -> Path:
    """Return the directory of Spark's jars as it is in the class path: an archive does not fit another path, even to the same files."""
    return Path(_find_spark_home(), "jars")
