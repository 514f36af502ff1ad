"""The public interface: the names of `import millstream`, all of which are documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import millstream as ms

SKIPPED = {"millstream.edge.daemon"}
"""These modules run as programs, which connect to Spark when they start."""
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(ms.__path__, "millstream.")
    if info.name not in SKIPPED and not info.name.endswith(".__main__")
)


@pytest.mark.parametrize("name", ms.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(ms, name) is not None


def test_public_names_are_sorted_and_listed_once() -> None:
    assert list(ms.__all__) == sorted(set(ms.__all__))


def test_dir_lists_every_public_name() -> None:
    assert set(ms.__all__) <= set(dir(ms))


def test_an_unknown_name_raises_the_usual_attribute_error() -> None:
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


def public_modules() -> Iterator[ModuleType]:
    yield ms
    yield from (value for name in ms.__all__ if inspect.ismodule(value := getattr(ms, name)))


def public_names() -> dict[str, Any]:
    """Return the functions and classes that users import, by the names that they use."""
    names = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in public_modules()
        for name in getattr(module, "__all__", None) or defined_in(module)
    }
    return {
        name: value for name, value in names.items() if inspect.isfunction(value) or inspect.isclass(value)
    }


def defined_in(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Return a public function, or a class and its public methods, inherited ones included."""
    yield name, value
    for base in value.__mro__ if inspect.isclass(value) else ():
        if base.__module__.startswith("millstream."):
            for attribute, member in vars(base).items():
                method = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if not attribute.startswith("_") and inspect.isfunction(method):
                    yield f"{name}.{attribute}", getattr(value, attribute) if method is member else method


@pytest.mark.parametrize("name", public_names())
def test_docstrings_of_public_names_are_complete(name: str) -> None:
    for member, value in members(name, public_names()[name]):
        docstring = inspect.getdoc(value) or ""
        assert docstring, f"{member} has no docstring"
        _, has_arguments, section = docstring.partition("\nArgs:\n")
        if has_arguments and inspect.isfunction(value):
            described = set(
                re.findall(r"\w+", " ".join(re.findall(r"^    ([*\w, ]+):", section, re.MULTILINE)))
            )
            taken = set(inspect.signature(value).parameters) - {"self", "cls"}
            assert taken - described == set(), f"{member} does not describe all arguments"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_documented(name: str) -> None:
    assert (importlib.import_module(name).__doc__ or "").strip(), f"{name} has no docstring"
