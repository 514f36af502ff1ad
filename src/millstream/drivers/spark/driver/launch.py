"""The JVM of a session created here, and the user's settings for Spark, which only Spark itself knows completely.

``spark-submit`` reads options, a file of defaults and a few variables; PySpark also reads ``PYSPARK_SUBMIT_ARGS``. A running JVM shows the
combined result in its ``SparkConf``. Settings passed to the JVM override the user's file, so Millstream's defaults are not passed
as settings. Those needed at the start of the JVM are set in the environment, which Spark reads last.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from millstream.core.model.errors import SparkRuntimeError
from millstream.drivers.class_archive import ClassArchive
from millstream.drivers.forked_children import close_in_children
from millstream.drivers.java import ADVICE, look_for_java, packaged_java
from millstream.drivers.private import process_directory
from millstream.drivers.spark.driver.worker_python import import_path, start_fork_server, worker_python

LOOPBACK: Final = "127.0.0.1"

_DRIVER_MEMORY: Final = "2g"
_JIT: Final = "-XX:TieredStopAtLevel=1"
"""The JVM moves chunks but processes no records, so its optimising compiler would cost more than it saves."""
_LOCAL: Final = re.compile(r"local(\[.*\])?|local-cluster\[.*\]")
_ONE_PROCESS: Final = re.compile(r"local(\[.*\])?")
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of settings whose values Spark hides, by default (``spark.redaction.regex``)."""
_MASTER: Final = re.compile(r"^(?:.*\s)?(?:--|spark\.)?master[\s=:]+(\S+)", re.MULTILINE)


def check_java() -> None:
    """Check that Java is available if this process must start a JVM."""
    if starts_jvm():
        java, looked = look_for_java()
        if java is None:
            raise SparkRuntimeError(f"Spark needs Java, and none was found ({looked}). {ADVICE}")


def starts_jvm() -> bool:
    """Return whether this process must start a JVM. Under ``spark-submit``, a JVM already exists."""
    return SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ


def given_to_spark(ours: Mapping[str, str], log: Path | None) -> dict[str, str]:
    """Return the user's settings from ``spark-submit``, the file of defaults and the environment.

    Starts a JVM if there is none.

    Args:
        ours: The application's Spark settings. A new JVM receives them, because some take effect only at its start; but not secrets,
            because it receives them on its command line, which every user of the host can read.
        log: File for the output of a new JVM and its Python workers. None means this program's output.
    """
    if SparkContext._gateway is None:
        local = _will_be_local(ours)
        if local and starts_jvm():
            start_fork_server(log)
        shown = {name: value for name, value in ours.items() if not _SECRET.search(name)}
        with _variables({"PYSPARK_PYTHON": worker_python()} if local else {}):
            _start_jvm(SparkConf(loadDefaults=False).setAll(list(shown.items())), log)
    return _without_defaults_of_submit(
        dict(SparkConf().getAll()), shell="PYSPARK_GATEWAY_PORT" not in os.environ
    )


def _without_defaults_of_submit(conf: Mapping[str, str], *, shell: bool) -> dict[str, str]:
    """Remove the settings that ``spark-submit`` adds: a name and, in a shell, a progress bar."""
    own = {("spark.app.name", "pyspark-shell"), ("spark.app.name", Path(sys.argv[0]).name)}
    if shell:
        own.add(("spark.ui.showConsoleProgress", "true"))
    return {name: value for name, value in conf.items() if (name, value) not in own}


def _start_jvm(conf: SparkConf, log: Path | None) -> None:
    # Signals to the group of this program must not reach Spark, which the application stops between two micro-batches.
    options: dict[str, Any] = {"process_group": 0}
    if log is None:
        gateway = launch_gateway(conf, options)
    else:
        with log.open("ab") as output:
            gateway = launch_gateway(conf, {**options, "stdout": output, "stderr": output})
    SparkContext._ensure_initialized(gateway=gateway)


def end_jvm_with_program() -> None:
    """Let the JVM end with this program, even if a child that the program has forked lives. The JVM ends with its standard input."""
    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.stdin is not None:
        close_in_children(process.stdin)


@contextmanager
def environment(ours: Mapping[str, str]) -> Iterator[None]:
    """Set the environment of a JVM that is started here, and of the Python workers that inherit it.

    Python workers can import what this program can import. The UI of a local session listens on the loopback interface.
    """
    wanted = {
        "PYTHONPATH": import_path(),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "SPARK_DRIVER_MEMORY": os.environ.get("SPARK_DRIVER_MEMORY") or _DRIVER_MEMORY,
    }
    started = (_temporary_files(), _archive_options()) if starts_jvm() else ()
    options = [_JIT, *started, os.environ.get("SPARK_SUBMIT_OPTS", "")]
    wanted["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, options))
    java = look_for_java()[0]
    if java is not None and java == packaged_java():
        wanted["JAVA_HOME"] = str(Path(java).parent.parent)
    if _will_be_local(ours):
        wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or LOOPBACK
    with _variables(wanted):
        yield


def _temporary_files() -> str:
    """Return the option with the directory of temporary files, which a killed JVM leaves, including 15 MB of native libraries.

    It is in the private directory of this process, which the next process removes when it starts.
    """
    directory = process_directory() / "java"
    directory.mkdir(exist_ok=True)
    return shlex.quote(f"-Djava.io.tmpdir={directory}")


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def executor_java_options(master: str) -> dict[str, str]:
    """Return settings that start the JVMs of executors with the driver's options. The user's options override them."""
    options = f"{_JIT} {_temporary_files()}" if is_local(master) else _JIT
    return {"spark.executor.defaultJavaOptions": options}


def is_local(master: str) -> bool:
    """Return whether a master runs everything on this host.

    Example:
        >>> is_local("local[*]"), is_local("local-cluster[2,1,1024]"), is_local("spark://localhost:7077")
        (True, True, False)
    """
    return _LOCAL.fullmatch(master) is not None


def is_one_process(master: str) -> bool:
    """Return whether a master runs driver and executor in one JVM.

    Example:
        >>> is_one_process("local[2, 3]"), is_one_process("local-cluster[2,1,1024]")
        (True, False)
    """
    return _ONE_PROCESS.fullmatch(master) is not None


def _will_be_local(ours: Mapping[str, str]) -> bool:
    return is_local(ours.get("spark.master", _expected_master()))


def _expected_master() -> str:
    """Return the master that a new JVM will probably use. Reads Spark's sources in Spark's order."""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    files = [Path(file) for option, file in pairwise(arguments) if option == "--properties-file"]
    conf = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    texts = [" ".join(arguments)]
    texts += [file.read_text() for file in (*files, Path(conf, "spark-defaults.conf")) if file.is_file()]
    matches = (
        _MASTER.search("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
        for text in texts
    )
    return next((match[1] for match in matches if match), os.environ.get("MASTER", "local[*]"))


# The class archive of a JVM that this program starts.


def _archive_options() -> str:
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
        if all(
            path.parent == _jars() or not path.exists() for path in map(Path, class_path.split(os.pathsep))
        ):
            archive.make(class_path)


@cache
def _archive() -> ClassArchive | None:
    java = look_for_java()[0]
    return None if java is None else ClassArchive("spark", java, _jars())


def _jars() -> Path:
    """Return the directory of Spark's jars as it is in the class path: an archive does not fit another path, even to the same files."""
    return Path(_find_spark_home(), "jars")
