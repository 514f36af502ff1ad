"""Jars from Maven coordinates, resolved once per machine.

PySpark includes Apache Ivy, which resolves a module and its dependencies, so Millstream can start a broker without a build tool or a
Kafka distribution. Resolved jars are kept in the *cache directory*, one folder per purpose (``kafka-4.3.0``). Under a file lock, a folder
is filled under a temporary name and then renamed. An existing folder is therefore complete, and test processes that start together
resolve it only once.

If Maven Central is not reachable, set ``MILLSTREAM_IVY_SETTINGS`` to an Ivy settings file that names a mirror, or
``MILLSTREAM_KAFKA_JARS`` to a directory with the jars of a broker (such as ``libs`` of a Kafka distribution).
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.drivers.cache import cache_directory
from millstream.testing._java import EmbeddedKafkaError, find_java

KAFKA_VERSION = "4.3.0"
"""The version of the embedded broker and of its tools."""

_KAFKA_MODULES = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",  # without an slf4j binding the broker fails silently
)
_RESOLVE_TIMEOUT_S = 900.0
_MARKER = "modules.txt"


def kafka_jars() -> Path:
    """Return a directory with the jars of a Kafka broker and of its command line tools.

    Returns:
        ``$MILLSTREAM_KAFKA_JARS`` if set, otherwise the folder ``kafka-<version>`` of the cache.

    Raises:
        EmbeddedKafkaError: If the directory contains no broker, or the jars cannot be resolved.
    """
    own = os.environ.get("MILLSTREAM_KAFKA_JARS")
    if not own:
        return resolve_jars(*_KAFKA_MODULES, folder=f"kafka-{KAFKA_VERSION}")
    if not any(Path(own).glob("kafka_2.13-*.jar")):
        raise EmbeddedKafkaError(
            f"MILLSTREAM_KAFKA_JARS is {own}, but no kafka_2.13-*.jar is there: set it to a directory with all jars of "
            "a Kafka broker (such as libs of a Kafka distribution), or unset it to have them resolved."
        )
    return Path(own)


def resolve_jars(*modules: str, folder: str) -> Path:
    """Resolve modules and their dependencies into a folder of the cache, unless it is already complete.

    Args:
        modules: Maven coordinates, ``organisation:name:version``, resolved together, including version conflicts.

    Raises:
        EmbeddedKafkaError: If Java or Ivy is missing, a module cannot be resolved, or the cache cannot be written.
    """
    directory = cache_directory() / folder
    if _holds(directory, modules):
        return directory
    try:
        with _lock(directory.with_name(f"{folder}.lock")):
            if not _holds(directory, modules):
                _fill(directory, modules)
    except OSError as error:
        raise EmbeddedKafkaError(
            f"the jars cannot be kept in {directory}: {error}. Set MILLSTREAM_CACHE_DIR to a directory that you can write."
        ) from error
    return directory


def _holds(directory: Path, modules: tuple[str, ...]) -> bool:
    marker = directory / _MARKER
    return marker.is_file() and marker.read_text().split() == list(modules)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fill(directory: Path, modules: tuple[str, ...]) -> None:
    """Resolve into a temporary folder, then rename it. The caller holds the lock, so an existing temporary folder is left from a crash."""
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _run_ivy(partial, modules, log=directory.with_name(f"{directory.name}.ivy.log"))
        (partial / _MARKER).write_text("\n".join(modules))
        if directory.exists():
            shutil.rmtree(directory)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_ivy(target: Path, modules: tuple[str, ...], *, log: Path) -> None:
    request = target / "ivy.xml"
    request.write_text(_ivy_file(modules, folder=log.name.removesuffix(".ivy.log")))
    settings = os.environ.get("MILLSTREAM_IVY_SETTINGS")
    command = [find_java(), "-jar", str(_ivy_jar()), *(["-settings", settings] if settings else [])]
    command += ["-ivy", str(request), "-types", "jar", "bundle", "-confs", "default"]
    command += ["-retrieve", f"{target}/[artifact]-[revision].[ext]"]
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_RESOLVE_TIMEOUT_S,
                check=False,
            ).returncode
            ending = f"Ivy ended with code {code}"
        except subprocess.TimeoutExpired:
            code, ending = -1, f"Ivy did not end within {_RESOLVE_TIMEOUT_S:.0f} s"
    if code != 0 or not any(target.glob("*.jar")):
        raise EmbeddedKafkaError(
            f"the jars of {', '.join(modules)} cannot be resolved: {ending}{_complaints(log)}. Ivy's log is {log}. If "
            "Maven Central is out of reach, set MILLSTREAM_IVY_SETTINGS to an Ivy settings file (ivysettings.xml) that "
            "names your mirror; for the broker, MILLSTREAM_KAFKA_JARS may also name a directory that already holds its jars."
        )
    request.unlink()


def _complaints(log: Path) -> str:
    lines = (line.strip(" \t:") for line in log.read_text(errors="replace").splitlines())
    problems = dict.fromkeys(
        line for line in lines if line.endswith("not found") or line.startswith("Server access")
    )
    return "".join(f"; {line}" for line in list(problems)[:3])


def _ivy_file(modules: tuple[str, ...], *, folder: str) -> str:
    dependencies = ""
    for module in modules:
        try:
            organisation, name, version = module.split(":")
        except ValueError:
            raise EmbeddedKafkaError(
                f"{module!r} is not a Maven coordinate: write organisation:name:version, for example {_KAFKA_MODULES[0]}"
            ) from None
        dependencies += (
            f'<dependency org="{organisation}" name="{name}" rev="{version}" conf="default->default"/>'
        )
    return (
        f'<ivy-module version="2.0"><info organisation="millstream" module="{folder}"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies></ivy-module>'
    )


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    for location in (pyspark.submodule_search_locations or []) if pyspark else []:
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    raise EmbeddedKafkaError(
        "no Ivy found: it comes with PySpark (jars/ivy-*.jar), and the PySpark of this Python environment has none. "
        "Install pyspark from PyPI, or set MILLSTREAM_KAFKA_JARS to a directory that already holds the broker's jars."
    )
