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
    """The run of a seed.

    Attributes:
        seed: The seed.
        steps: The number of decisions.
        digest: A digest of all decisions, to compare runs.
        failure: The failure; None if there was none.
        trace: The decisions.
    """

    seed: int
    steps: int
    digest: str
    failure: BaseException | None
    trace: list[str]

    def line(self) -> str:
        """Return the seed and its failure."""
        return f"seed {self.seed}: {type(self.failure).__name__}: {self.failure}"

    def report(self) -> str:
        """Return the failure and the last decisions before it."""
        left_out = max(len(self.trace) - _SHOWN, 0)
        shown = [f"({left_out} steps before)", *self.trace[left_out:]]
        return "\n".join([self.line(), *(f"    {line}" for line in shown)])


def run(seed: int, *, kind: Kind | None = None, exactly_once: bool | None = None) -> Run:
    """Run a seed.

    Args:
        seed: The seed, which decides everything.
        kind: The kind of application; by default, the seed chooses it.
        exactly_once: Whether the guarantee is exactly-once; by default, the seed chooses it.
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
