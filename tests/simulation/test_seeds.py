"""Seeds of the simulation: a few hundred with all tests, ten thousand in `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.runs import run

FIRST = int(os.environ.get("MILLSTREAM_TEST_SIMULATION_FIRST", "0"))
SEEDS = int(os.environ.get("MILLSTREAM_TEST_SIMULATION_SEEDS", "200"))
_SEEDS_PER_TEST = 50
_REPEATED = (5, 26)
_DIGESTS = f"from simulation.runs import run; print(*(run(seed).digest for seed in {_REPEATED}))"


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, _SEEDS_PER_TEST))
def test_no_record_is_lost_duplicated_or_wrong_despite_faults(first: int) -> None:
    runs = [run(seed) for seed in range(first, min(first + _SEEDS_PER_TEST, FIRST + SEEDS))]
    failed = [result for result in runs if result.failure is not None]
    assert not failed, "\n".join([*(result.line() for result in failed), failed[0].report()])


def test_seeds_repeat_their_runs_in_other_processes() -> None:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), *sys.path])
    digests = [run(seed).digest for seed in _REPEATED]
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hashes}
        command = [sys.executable, "-c", _DIGESTS]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert completed.stdout.split() == digests


def test_the_report_of_a_run_has_its_seed_and_its_decisions() -> None:
    report = run(5).report()
    assert report.startswith("seed 5: ")
    assert "commits batch 0" in report or "steps before" in report
