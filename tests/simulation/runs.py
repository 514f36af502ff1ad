"""Runs of seeds, and the report of a failed one."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from simulation.models import installed
from simulation.topologies import Kind
from simulation.world import World

_SHOWN = 400


@dataclass(frozen=True)
class Run:
    """What a seed did.

    Attributes:
        seed: The seed.
        steps: How many decisions it made.
        digest: Of all of them, to compare runs.
        failure: What was wrong, None if nothing was.
        trace: The decisions.
    """

    seed: int
    steps: int
    digest: str
    failure: BaseException | None
    trace: list[str]

    def line(self) -> str:
        """Return the seed and what was wrong."""
        return f"seed {self.seed}: {type(self.failure).__name__}: {self.failure}"

    def report(self) -> str:
        """Return what was wrong, and the last decisions before."""
        left_out = max(len(self.trace) - _SHOWN, 0)
        shown = [f"({left_out} steps before)", *self.trace[left_out:]]
        return "\n".join([self.line(), *(f"    {line}" for line in shown)])


def run(seed: int, *, kind: Kind | None = None, exactly_once: bool | None = None) -> Run:
    """Run a seed.

    Args:
        seed: It decides everything.
        kind: What the application does; the seed's choice if it is not given.
        exactly_once: Under which guarantee; the seed's choice if it is not given.
    """
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=_fast()) as directory:
        world = World(seed, directory, kind, exactly_once)
        failure: BaseException | None = None
        with installed(world):
            try:
                world.run()
            except (AssertionError, Exception) as error:
                failure = error
    trace = world.scheduler.trace
    digest = hashlib.sha256("\n".join(trace).encode()).hexdigest()
    return Run(seed, world.scheduler.steps, digest, failure, trace)


def _fast() -> str | None:
    """Return a directory in memory if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
