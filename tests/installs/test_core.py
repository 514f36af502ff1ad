"""Tests the wheel in an environment without extras."""

from __future__ import annotations

from pathlib import Path

import pytest

from .environments import ROOT, build, check, install, run, without_java


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


def test_the_core_suffices_to_test_topologies_and_errors_name_missing_packages(
    wheel: Path, tmp_path: Path
) -> None:
    commands = install(wheel, "", tmp_path / "core")
    check(commands, "")
    lines = run(
        commands / "python",
        "-c",
        "import importlib.util as u, millstream as ms\n"
        "print([m for m in ('pyspark', 'pandas', 'numpy', 'pyarrow', 'google', 'typer') if u.find_spec(m)])\n"
        "try: ms.Application\nexcept ModuleNotFoundError as error: print(error)\n"
        "try: ms.spark\nexcept ModuleNotFoundError as error: print(error)",
    ).splitlines()
    assert lines[0] == "[]"
    assert lines[1].startswith(
        "ms.Application needs the package pyspark, which is not installed here: pip install "
    )
    assert lines[2].startswith(
        "ms.spark needs the package pyspark, which is not installed here: pip install "
    )


def test_two_builds_of_the_wheel_are_identical(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()


def test_make_setup_installs_java_if_the_system_has_none(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--always-make", "setup"]
    without = {"PATH": str(without_java(tmp_path / "bin")), "JAVA_HOME": ""}
    assert "--editable '.[dev,java]'" in run(*command, environment=without, cwd=ROOT)
    assert "--editable '.[dev]'" in run(*command, environment={"JAVA_HOME": "/somewhere"}, cwd=ROOT)
