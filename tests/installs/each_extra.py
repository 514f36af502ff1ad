"""Installs the wheel with each extra, under each Python, with the newest and the lowest versions. `make packages` runs this file.

It downloads gigabytes, so `make test` does not run it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from .environments import EXTRAS, ROOT, build, check, install, run, without_java


def _starts(python: str) -> bool:
    """Return whether a command starts. Version managers also have commands for versions that are not installed."""
    return shutil.which(python) is not None and subprocess.run([python, "--version"]).returncode == 0


PYTHONS: Final = [python for minor in (11, 12, 13, 14) if _starts(python := f"python3.{minor}")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra])
def test_each_extra_installs_its_modules(wheel: Path, tmp_path: Path, extra: str, python: str) -> None:
    check(install(wheel, extra, tmp_path / "environment", python), extra)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("versions", ["newest", "lowest"])
def test_the_demo_counts_words_without_a_system_java(wheel: Path, tmp_path: Path, versions: str) -> None:
    limits = _lowest() if versions == "lowest" else []
    commands = install(wheel, "all", tmp_path / "environment", PYTHONS[0], *limits)
    environment = {"JAVA_HOME": "", "PATH": f"{commands}:{without_java(tmp_path / 'bin')}"}
    assert "✓ Correct:" in run(
        commands / "millstream", "demo", "--lines", "500", environment=environment, cwd=tmp_path
    )


def _lowest() -> list[str]:
    """Return constraints that limit each direct requirement to the lowest version that it allows."""
    text = (ROOT / "pyproject.toml").read_text()
    wanted = text[: text.index("\ndev = [")]
    return [f"{name}=={version}.*" for name, version in re.findall(r'"([\w-]+)>=([\d.]+)"', wanted)]
