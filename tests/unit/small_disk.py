"""A small file system in memory, mounted in a separate user namespace. A test is skipped where that is not allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run_on_small_disk(directory: Path, work: str, size: str = "8m") -> str:
    """Run a program that finds a small file system mounted on a directory, the first of its arguments.

    Args:
        directory: An existing directory.
        work: The program.
        size: As in ``mount -o size=...``.

    Returns:
        What it wrote to standard output.
    """
    in_namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size={size} tmpfs {directory}"
    try:
        subprocess.run([*in_namespace, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    command = [*in_namespace, f'{mount} && exec "$@"', "sh", sys.executable, "-c", work, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
