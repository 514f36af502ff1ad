"""Killed again and again, exactly once: nothing lost, nothing twice, stores right. Thirteen kills over four applications.

The table says which parts are killed in which run; each is killed once, at points that the seed decides. In one run they are also
stopped, and killed again before the application has come to itself. A run without executors keeps all of Spark in one JVM,
as ``local[*]`` does, and starts faster. The application of calls is killed in ``tests/proofs``, where it
keeps a journal.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.testing.crash import APPS, Report, Target, run_with_crashes, unspoiled

GUARANTEE = "exactly_once"

DOUBLE_FAULTS = "windowed"
RUNS: list[tuple[str, int, tuple[Target, ...]]] = [
    ("word-count", 11, ("executor", "worker", "broker", "driver")),
    ("windowed", 19, ("host", "worker", "transaction")),
    ("replay", 14, ("program", "worker", "transaction")),
    ("two-stores", 13, ("executor", "disk", "transaction")),
    ("ranges", 17, ("executor", "worker")),
]

pytestmark = [pytest.mark.alone, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


def crashed(app: str, seed: int, targets: tuple[Target, ...], logs: Path) -> Report:
    """Run with a seed, and with others if the broker itself has spoiled the run."""

    def run(seed: int, attempt: int) -> Report:
        return run_with_crashes(
            APPS[app],
            guarantee=GUARANTEE,
            kills=len(targets),
            seed=seed,
            targets=targets,
            keep_logs=logs / str(attempt),
            stops=(2.0,) if app == DOUBLE_FAULTS else (),
            twice=app == DOUBLE_FAULTS,
        )

    return unspoiled(run, seed, log_report=print)


@pytest.mark.parametrize(("app", "seed", "targets"), RUNS, ids=[app for app, _, _ in RUNS])
def test_nothing_is_lost_or_repeated(
    app: str, seed: int, targets: tuple[Target, ...], tmp_path: Path
) -> None:
    report = crashed(app, seed, targets, tmp_path)
    assert report.ok, str(report)
    assert sorted(kill.target for kill in report.kills if not kill.again) == sorted(targets)
    assert report.findings.duplicated == 0
    if app == DOUBLE_FAULTS:
        assert any(kill.again for kill in report.kills)
        assert any(kill.stopped_s for kill in report.kills)
    assert not any("committed offsets" in end for end in report.ends)  # a start waits for no dead transaction


def test_there_are_fifteen_kills() -> None:
    assert sum(len(targets) for _, _, targets in RUNS) == 15
