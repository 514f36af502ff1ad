"""Child processes that print their result as one line of JSON, and that are ended by their own pids.

What Spark and Java write beside it goes to a log in the run's scratch directory and is shown only when a child fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
_LOG_LINES = 30
_GRACE_S = 10.0


class ChildError(RuntimeError):
    """A child process failed, or printed no result."""


def run_for_json(command: Sequence[str], *, scratch: Path, timeout_s: float) -> dict[str, Any]:
    """Run a command and return the object in the last line of its output that contains one.

    Args:
        command: Program and arguments.
        scratch: Working directory of the child; the log is kept there too.
        timeout_s: How long it may take.

    Raises:
        ChildError: If it fails, takes too long or prints no object; with the last lines of its log.
    """
    log = scratch / "child.log"
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    with log.open("w+") as errors:
        child = subprocess.Popen(
            command,
            cwd=scratch,
            env=child_environment(temporary),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            output, _ = child.communicate(timeout=timeout_s)
            ending = f"ended with code {child.returncode}"
        except subprocess.TimeoutExpired:
            output, ending = "", f"did not end within {timeout_s:.0f} s"
        finally:
            if child.poll() is None:
                end_tree(child.pid)
                child.wait()
    objects = [line for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    if child.returncode != 0 or not objects:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise ChildError(
            f"{' '.join(command[:4])} ... {ending}, {len(objects)} results printed. Its log ends with:\n{tail}"
        )
    result: dict[str, Any] = json.loads(objects[-1])
    return result


def run_ours(part: str, arguments: Mapping[str, Any], *, scratch: Path, timeout_s: float) -> dict[str, Any]:
    """Run a measurement of ours in a fresh Python process; see ``bench.ours``."""
    command = [sys.executable, "-m", "bench.ours", part, json.dumps(arguments)]
    return run_for_json(command, scratch=scratch, timeout_s=timeout_s)


def child_environment(temporary: Path) -> dict[str, str]:
    """Return the environment of a child process that imports the benchmark, with a directory for temporary files."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}


def processor_s() -> float:
    """Return the processor time of this process and all processes that it has started so far, seconds.

    Processes of :func:`run_for_json` share the scratch directory in their environment, because an async worker is not their
    child. The time of ended processes is counted by the process that waited for them.
    """
    home, total = os.environ["TMPDIR"], 0.0
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("TMPDIR") == home:
                total += sum(process.cpu_times()[:4])
    return total


def end_tree(pid: int) -> None:
    """End a process and what it has started, if they still run."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(family, timeout=_GRACE_S)
    for process in alive:
        _quietly(process.kill)


def _quietly(action: Callable[[], object]) -> None:
    with suppress(psutil.NoSuchProcess):
        action()
