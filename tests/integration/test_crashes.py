"""Applications with exactly once are killed repeatedly: no record is lost or repeated, and the stores are correct.

Five applications are killed twelve times. `RUNS` lists the targets of each run; each is killed once, at a point that the seed determines.
Every target is killed in at least one run; `make soak` kills it in the other applications, too. In one run, targets are also stopped for
a while, and killed again before the application has recovered. A run without executors keeps all of Spark in one JVM, as ``local[*]``
does, and starts faster. Two runs share the machine, because an application that recovers mostly waits. The workload leaves about two
micro-batches between two kills; `make soak` has more. ``tests/proofs`` kills the application of calls, where it keeps a journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.testing.crash import APPS, Report, Target, run_with_crashes, unspoiled

GUARANTEE = "exactly_once"
RECORDS_PER_KILL = 600
RECORDS_AFTERWARDS = 600

DOUBLE_FAULTS = "windowed"
RUNS: list[tuple[str, int, tuple[Target, ...]]] = [
    ("word-count", 11, ("network", "broker", "driver")),
    ("windowed", 19, ("host", "worker", "transaction")),
    ("replay", 14, ("program", "transaction")),
    ("two-stores", 13, ("main", "disk")),
    ("ranges", 17, ("executor", "worker")),
]

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


def crashed(app: str, seed: int, targets: tuple[Target, ...], logs: Path) -> Report:
    """Run with a seed, and with other seeds if the broker itself spoils the run."""

    def run(seed: int, attempt: int) -> Report:
        return run_with_crashes(
            APPS[app],
            guarantee=GUARANTEE,
            kills=len(targets),
            seed=seed,
            targets=targets,
            records=RECORDS_PER_KILL * len(targets) + RECORDS_AFTERWARDS,
            keep_logs=logs / str(attempt),
            stops=(2.0,) if app == DOUBLE_FAULTS else (),
            twice=app == DOUBLE_FAULTS,
        )

    return unspoiled(run, seed, log_report=print)


@pytest.fixture(scope="module")
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Report]]]:
    """The runs that were selected, two at a time."""
    names = {item.name for item in request.session.items if item.path == request.path}
    chosen = [run for run in RUNS if f"test_nothing_is_lost_or_repeated[{run[0]}]" in names]
    pool = ThreadPoolExecutor(2)
    try:
        yield {run[0]: pool.submit(crashed, *run, tmp_path_factory.mktemp(run[0])) for run in chosen}
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    ("app", "targets"), [(app, targets) for app, _, targets in RUNS], ids=[run[0] for run in RUNS]
)
def test_nothing_is_lost_or_repeated(
    app: str, targets: tuple[Target, ...], reports: Mapping[str, Future[Report]]
) -> None:
    report = reports[app].result()
    assert report.ok, str(report)
    assert sorted(kill.target for kill in report.kills if not kill.again) == sorted(targets)
    assert report.findings.duplicated == 0
    if APPS[app].changes is not None:
        assert report.changes > 0
    if app == DOUBLE_FAULTS:
        assert any(kill.again for kill in report.kills)
        assert any(kill.stopped_s for kill in report.kills)
    assert not any(
        "committed offsets" in end for end in report.ends
    )  # no start waits for the transaction of a dead run


def test_there_are_twelve_kills() -> None:
    assert sum(len(targets) for _, _, targets in RUNS) == 12
