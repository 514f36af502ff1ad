"""The names of PySpark that Millstream uses although they are not public: a canary for each new PySpark release."""

from __future__ import annotations

import ast
import importlib
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pyspark
import pytest
from confluent_kafka import KafkaError
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import millstream

PUBLIC_MODULES: Final = {
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.streaming",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.types",
}
PRIVATE_MODULES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "pyspark.cloudpickle": (
        ("dumps", "loads", "register_pickle_by_value", "unregister_pickle_by_value"),
        "topologies travel to workers, and the doctor to executors without Millstream",
    ),
    "pyspark.daemon": (("manager",), "workers are forked from a daemon that has imported everything"),
    "pyspark.find_spark_home": (
        ("_find_spark_home",),
        "spark-defaults.conf is read, and the crash harness finds Spark",
    ),
    "pyspark.java_gateway": (("launch_gateway",), "the JVM writes to a file beside the state"),
    "pyspark.sql.streaming.python_streaming_source_runner": (
        ("main",),
        "the crash harness knows the planner",
    ),
    "pyspark.sql.streaming.stateful_processor_api_client": (
        ("StatefulProcessorApiClient",),
        "the daemon imports it",
    ),
    "pyspark.sql.streaming.stateful_processor_util": (
        ("TransformWithStateInPandasUdfUtils",),
        "the daemon imports it",
    ),
    "pyspark.sql.worker.python_streaming_sink_runner": (
        ("main",),
        "the crash harness knows the commit of the sink",
    ),
    "pyspark.worker": (("main",), "the daemon imports it, and the crash harness knows workers"),
    **dict.fromkeys(
        (
            "pyspark.sql.streaming.transform_with_state_driver_worker",
            "pyspark.sql.worker.create_data_source",
            "pyspark.sql.worker.lookup_data_sources",
            "pyspark.sql.worker.plan_data_source_read",
            "pyspark.sql.worker.write_into_data_source",
        ),
        (("main",), "the fork server imports it, or each process of this kind does"),
    ),
    "pyspark.sql.streaming.proto.StateMessage_pb2": ((), "the fork server imports it, or each worker does"),
}
"""Per module, the names that are used and what they are used for."""

PRIVATE_ATTRIBUTES: Final[dict[str, tuple[type, str]]] = {
    "_active_spark_context": (SparkContext, "a session that is active in another thread is found"),
    "_ensure_initialized": (
        SparkContext,
        "what spark-submit was given is asked of the JVM before there is a session",
    ),
    "_gateway": (SparkContext, "a JVM that runs already is found, and the demo ends its own"),
    "_python_includes": (SparkContext, "modules are sent to workers once"),
    "_get_j_spark_session_class": (SparkSession, "a query is started in any thread"),
    "_streamingCheckpointManager": (SparkSession, "millstream rescale moves the state"),
}
"""Per attribute, its class and what it is used for."""

SET_IN_CONSTRUCTORS: Final[dict[str, tuple[str, str]]] = {
    "_jsc": (
        "pyspark.core.context",
        "checkpoints are read on other file systems, the doctor counts cores",
    ),
    "pythonExec": ("pyspark.core.context", "workers are of the program's Python"),
    "_jsparkSession": ("pyspark.sql.session", "a query has its settings while it is started"),
    "_jvm": (
        "pyspark.sql.session",
        "checkpoints are read on other file systems, queries are started in any thread",
    ),
}
"""Per attribute of an instance, the module that sets it and what it is used for."""

IN_THE_JVM: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "sql/classic/SparkSession": (("sessionState", "setActiveSession"), "a query is started in any thread"),
    "sql/internal/SessionState": (("conf", "newHadoopConf"), "a query has its settings while it is started"),
    "sql/internal/SQLConf": (("setConfString", "unsetConf"), "a query has its settings while it is started"),
    "sql/execution/streaming/state/RocksDBStateStoreProvider": ((), "queries keep state"),
    "sql/execution/streaming/checkpointing/FileSystemBasedCheckpointFileManager": (
        (),
        "a checkpoint costs few processes",
    ),
    "SparkContext": (("maxNumConcurrentTasks", "resourceProfileManager"), "the doctor counts cores"),
    "resource/ResourceProfileManager": (("defaultResourceProfile",), "the doctor counts cores"),
    "deploy/SparkSubmit": ((), "the crash harness knows the JVM of the driver"),
    "launcher/Main": ((), "the crash harness knows the JVM of the driver"),
    "executor/CoarseGrainedExecutorBackend": ((), "the crash harness knows executors"),
}
"""Classes of Spark below ``org/apache/spark``, methods that are called through py4j, and what they are used for."""

STANDARD_LIBRARY_NAMES: Final = {
    "_is_protocol",
    "_asdict",
    "_exit",
    "_fields",
    "_get_running_loop",
    "_replace",
    "_set_running_loop",
}
"""Private names of Python's standard library."""

ROOT: Final = Path(millstream.__file__).parent


@cache
def trees() -> list[ast.Module]:
    """Parse the package. This takes seconds, so it is not done while each process of a test run collects the tests."""
    return [ast.parse(file.read_text()) for file in sorted(ROOT.rglob("*.py"))]


@pytest.mark.parametrize("module", PRIVATE_MODULES)
def test_used_modules_and_their_used_names_exist(module: str) -> None:
    names, breaks = PRIVATE_MODULES[module]
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        pytest.fail(f"{error}, so this breaks: {breaks}")
    missing = [name for name in names if not hasattr(found, name)]
    assert not missing, f"this PySpark has no {missing} in {module}, so this breaks: {breaks}"


@pytest.mark.parametrize("name", PRIVATE_ATTRIBUTES)
def test_used_attributes_of_classes_exist(name: str) -> None:
    owner, breaks = PRIVATE_ATTRIBUTES[name]
    assert hasattr(owner, name), f"this PySpark has no {owner.__name__}.{name}, so this breaks: {breaks}"


@pytest.mark.parametrize("name", SET_IN_CONSTRUCTORS)
def test_used_attributes_of_instances_are_set(name: str) -> None:
    module, breaks = SET_IN_CONSTRUCTORS[name]
    source = Path(importlib.import_module(module).__file__ or "").read_text()
    is_set = f"self.{name} = " in source or f"self.{name}: " in source
    assert is_set, f"{module} of this PySpark does not set {name}, so this breaks: {breaks}"


def test_used_classes_and_methods_of_the_jvm_exist() -> None:
    """A class file contains the names of its methods."""
    found: dict[str, bytes] = {}
    for jar in Path(pyspark.__file__).parent.glob("jars/spark-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            names_by_entry = {f"org/apache/spark/{name}.class": name for name in IN_THE_JVM}
            inside = names_by_entry.keys() & set(archive.namelist())
            found.update({names_by_entry[entry]: archive.read(entry) for entry in inside})
    for name, (methods, breaks) in IN_THE_JVM.items():
        assert name in found, f"this Spark has no class {name}, so this breaks: {breaks}"
        missing = [method for method in methods if method.encode() not in found[name]]
        assert not missing, f"this Spark has no {missing} in {name}, so this breaks: {breaks}"


def test_no_unlisted_class_of_the_jvm_is_used() -> None:
    named = {
        node.value.removeprefix("org.apache.spark.").replace(".", "/")
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).startswith("org.apache.spark.")
    }
    assert named <= set(IN_THE_JVM)


def test_the_launcher_of_the_jvm_accepts_arguments_for_its_process() -> None:
    assert {"conf", "popen_kwargs"} <= set(launch_gateway.__code__.co_varnames)


def test_no_unlisted_module_is_used() -> None:
    assert set(_modules()) - PUBLIC_MODULES == set(PRIVATE_MODULES)


def test_no_unlisted_private_attribute_is_used() -> None:
    own = {name for tree in trees() for name in _defined(tree)}
    used = {
        node.attr
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }
    used |= {name for tree in trees() for name in _looked_up(tree)}
    known = {*PRIVATE_ATTRIBUTES, *SET_IN_CONSTRUCTORS} - {"pythonExec"}
    # the codes of librdkafka's own errors begin with an underscore, and are public
    assert {name for name in used - own - STANDARD_LIBRARY_NAMES if not hasattr(KafkaError, name)} <= known
    assert known <= used


def _modules() -> Iterator[str]:
    """Return the modules of PySpark that are imported or run as programs, and names that a module does not publish."""
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pyspark":
                yield str(node.module)
                published = getattr(importlib.import_module(str(node.module)), "__all__", None)
                if node.module in PUBLIC_MODULES and published is not None:
                    yield from (
                        f"{node.module}.{alias.name}" for alias in node.names if alias.name not in published
                    )
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "pyspark")
            elif (
                isinstance(node, ast.Constant)
                and str(node.value).startswith("pyspark.")
                and " " not in str(node.value)
            ):
                yield str(node.value)


def _looked_up(tree: ast.Module) -> Iterator[str]:
    """Return the private names that are given to ``getattr`` and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            for argument in node.args[1:2]:
                name = str(argument.value) if isinstance(argument, ast.Constant) else ""
                if name.startswith("_") and not name.startswith("__"):
                    yield name


def _defined(tree: ast.Module) -> Iterator[str]:
    """Return names that Millstream defines itself: functions, fields, and attributes of its instances."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
