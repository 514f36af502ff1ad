"""Shells that run the commands of a page."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO


def started(
    script: str, directory: Path, environment: Mapping[str, str], output: IO[bytes] | IO[str]
) -> subprocess.Popen[bytes]:
    """Start a script in bash. Its process group contains everything that it starts, unless a command leaves the group."""
    return subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail\n{script}"],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
