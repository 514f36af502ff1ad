"""The names of PySpark that Penstock uses and that are no public interface: a canary for each PySpark that comes."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import penstock

PUBLIC_MODULES: Final = {
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.streaming",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.types",
}
PRIVATE_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "pyspark.daemon": ("manager",),
    "pyspark.find_spark_home": ("_find_spark_home",),
    "pyspark.java_gateway": ("launch_gateway",),
    "pyspark.sql.streaming.python_streaming_source_runner": ("main",),
    "pyspark.sql.streaming.stateful_processor_api_client": ("StatefulProcessorApiClient",),
    "pyspark.sql.streaming.stateful_processor_util": ("TransformWithStateInPandasUdfUtils",),
    "pyspark.sql.utils": ("is_remote",),
    "pyspark.sql.worker.python_streaming_sink_runner": ("main",),
    "pyspark.worker": ("main",),
}
PRIVATE_ATTRIBUTES: Final[dict[str, type]] = {
    "_active_spark_context": SparkContext,
    "_ensure_initialized": SparkContext,
    "_gateway": SparkContext,
    "_python_includes": SparkContext,
    "_get_j_spark_session_class": SparkSession,
    "_streamingCheckpointManager": SparkSession,
}
SET_IN_CONSTRUCTORS: Final[dict[str, str]] = {
    "_jsc": "pyspark.core.context",
    "pythonExec": "pyspark.core.context",
    "_jsparkSession": "pyspark.sql.session",
    "_jvm": "pyspark.sql.session",
}
"""Attributes of an instance, with the module that sets them."""

OF_OTHERS: Final = {"_asdict", "_exit", "_fields", "_get_running_loop", "_replace", "_set_running_loop"}
"""What Python's own library calls so."""

ROOT: Final = Path(penstock.__file__).parent
TREES: Final = [ast.parse(file.read_text()) for file in sorted(ROOT.rglob("*.py"))]


@pytest.mark.parametrize("module", PRIVATE_MODULES)
def test_modules_and_what_is_used_of_them_are_there(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in PRIVATE_MODULES[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize("name", PRIVATE_ATTRIBUTES)
def test_attributes_of_classes_are_there(name: str) -> None:
    assert hasattr(PRIVATE_ATTRIBUTES[name], name)


@pytest.mark.parametrize("name", SET_IN_CONSTRUCTORS)
def test_attributes_of_instances_are_set(name: str) -> None:
    source = Path(importlib.import_module(SET_IN_CONSTRUCTORS[name]).__file__ or "").read_text()
    assert f"self.{name} = " in source or f"self.{name}: " in source


def test_the_launcher_of_the_jvm_takes_arguments_for_its_process() -> None:
    assert {"conf", "popen_kwargs"} <= set(launch_gateway.__code__.co_varnames)


def test_no_other_module_is_used() -> None:
    assert set(_modules()) - PUBLIC_MODULES == set(PRIVATE_MODULES)


def test_no_other_private_attribute_is_used() -> None:
    own = {name for tree in TREES for name in _defined(tree)}
    used = {
        node.attr
        for tree in TREES
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }
    known = {*PRIVATE_ATTRIBUTES, *SET_IN_CONSTRUCTORS} - {"pythonExec"}
    # the codes of librdkafka's own errors begin with an underscore, and are public
    assert {name for name in used - own - OF_OTHERS if not hasattr(KafkaError, name)} <= known
    assert known <= used


def _modules() -> Iterator[str]:
    """Return the modules of PySpark that are imported, or named as programs to run."""
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pyspark":
                yield str(node.module)
            elif (
                isinstance(node, ast.Constant)
                and str(node.value).startswith("pyspark.")
                and " " not in str(node.value)
            ):
                yield str(node.value)


def _defined(tree: ast.Module) -> Iterator[str]:
    """Return what Penstock itself calls so: functions, fields, and attributes of its own instances."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
