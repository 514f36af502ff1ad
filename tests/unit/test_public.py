"""The public face: what `import millstream` gives, and that all of it is documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import millstream as ms

SKIPPED = {"millstream.edge.daemon"}
"""Runs as a program: it speaks to Spark when it is started."""
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(ms.__path__, "millstream.")
    if info.name not in SKIPPED and not info.name.endswith(".__main__")
)


@pytest.mark.parametrize("name", ms.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(ms, name) is not None


def test_public_names_are_sorted_and_told_once() -> None:
    assert list(ms.__all__) == sorted(set(ms.__all__))


def test_an_unknown_name_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'millstream' has no attribute 'Strem'"):
        _ = ms.Strem


def test_building_a_topology_imports_neither_spark_nor_a_kafka_client() -> None:
    program = (
        "import sys, millstream as ms\n"
        "b = ms.StreamsBuilder(); b.stream('in').to('out'); b.build().describe()\n"
        "print([m for m in ('pyspark', 'confluent_kafka', 'lmdb', 'pyarrow', 'pandas', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Give the public functions and classes that a module defines, and the public methods of its classes."""
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(member) or inspect.isclass(member):
            yield name, member
        if inspect.isclass(member):
            for attribute, value in vars(member).items():
                method = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if not attribute.startswith("_") and inspect.isfunction(method):
                    yield f"{name}.{attribute}", method


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    undocumented = [member for member, value in members(module) if not (value.__doc__ or "").strip()]
    assert undocumented == []
