"""The command of the crash harness, as far as it works without a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.testing.crash import (
    APPS,
    App,
    CrashTestError,
    Findings,
    Guarantee,
    Kill,
    Report,
    Target,
    crash_command,
    run_with_crashes,
    unspoiled,
)
from millstream.testing.crash.crash_command import main, rounds


def test_kills_are_divided_over_applications_and_seeds() -> None:
    runs = list(rounds([APPS["windowed"], APPS["two-stores"]], kills=25, kills_per_run=10, seed=3))
    assert [(run.app.name, run.kills, run.seed) for run in runs] == [
        ("windowed", 10, 3),
        ("two-stores", 10, 4),
        ("windowed", 5, 5),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--app", "word-cuont"], "no application 'word-cuont'"),
        (["--app", "millstream:Topology"], "'millstream:Topology' is not an App"),
        (["--app", "windowed", "--targets", "broker,cat"], "no target 'cat'; there are program, host,"),
        (["--app", "windowed", "--faults", "stop,pause"], "no fault 'pause'; there are kill, stop, slow"),
        (["--app", "windowed", "--targets", "space"], "'space' is not for 'windowed'"),
        (["--app", "windowed", "--guarantee", "twice"], "invalid choice: 'twice'"),
        (["--app", "windowed,two-stores", "--targets", "transaction"], "'transaction' is not for 'windowed'"),
        ([], "required: --app"),
        (["--app", "windowed", "--kills", "0"], "--kills: '0' is not a whole number of at least 1"),
        (["--app", "windowed", "--kills=-3"], "--kills: '-3' is not a whole number of at least 1"),
        (["--app", "windowed", "--kills-per-run", "0"], "--kills-per-run: '0' is not a whole number"),
        (["--app", "windowed", "--brokers", "0"], "--brokers: '0' is not a whole number of at least 1"),
        (["--app", "windowed", "--records", "many"], "--records: 'many' is not a whole number of at least 1"),
        (["--app", "windowed", "--stops", "1,-5"], "'1,-5' is not a list of seconds with commas"),
        (["--app", "windowed", "--stops", "nan"], "'nan' is not a list of seconds with commas"),
    ],
)
def test_a_mistake_is_reported_before_anything_starts(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("app", "guarantee", "target"),
    [
        ("windowed", "at_least_once", "transaction"),
        ("two-stores", "at_least_once", "disk"),
        ("windowed", "exactly_once", "disk"),
        ("windowed", "exactly_once", "async-worker"),
    ],
)
def test_a_target_that_the_application_cannot_survive_is_refused(
    app: str, guarantee: Guarantee, target: Target
) -> None:
    with pytest.raises(ValueError, match=f"{target!r} is not for {app!r} with {guarantee!r}; its targets"):
        run_with_crashes(APPS[app], guarantee=guarantee, targets=[target])


def report(**more: object) -> Report:
    facts: dict[str, object] = {
        "app": "word-count",
        "guarantee": "exactly_once",
        "seed": 7,
        "master": "local[2,4]",
        "records": 1_000,
        "kills": (
            Kill("broker", 250, 4.25, in_transaction=True),
            Kill("worker", 750, 0.5, "pid 7"),
            Kill("driver", 800, None, stopped_s=10.0),
            Kill("program", 800, 30.0, again="worker"),
            Kill("task", 850, 1.0, "pid 9", stopped_s=10.0, slowed=True),
            Kill("network", 900, 1.0, stopped_s=2.0),
            Kill("clock", 950, 1.0, "+3,600 s", stopped_s=2.0),
        ),
        "restarts": 1,
        "ends": ("SparkRuntimeError: gone",),
        "batches": 12,
        "outputs": 3_000,
        "aborted": 40,
        "findings": Findings(),
        "wrong_states": 0,
        "wrong_changelogs": 0,
        "went_back": 0,
        "examples": (),
        "seconds": 61.0,
    }
    return Report(**{**facts, **more})  # type: ignore[arg-type]


def test_a_report_lists_the_kills_and_the_findings() -> None:
    assert str(report()).splitlines() == [
        "word-count, exactly_once, seed 7, local[2,4]",
        "  records     1,000 in, 3,000 out, 40 aborted",
        "  batches     12",
        "  kill 1      broker after 250 records, in a transaction; progress again after 4.2 s",
        "  kill 2      worker (pid 7) after 750 records; progress again after 0.5 s",
        "  kill 3      driver stopped for 10 s after 800 records",
        "  kill 4      program after 800 records, before it had recovered: worker; progress again after 30.0 s",
        "  kill 5      task (pid 9) slowed for 10 s after 850 records; progress again after 1.0 s",
        "  kill 6      network cut for 2 s after 900 records; progress again after 1.0 s",
        "  kill 7      clock (+3,600 s) wrong for 2 s after 950 records; progress again after 1.0 s",
        "  restarts    1",
        "  ended       SparkRuntimeError: gone",
        "  journal     0 lost, 0 duplicated, 0 reordered, 0 wrong, 0 stale",
        "  stores      0 wrong entries, 0 in changelog topics",
        "  offsets     went back 0 times",
        "  partitions  0 results misplaced",
        "  RIGHT after 61 s",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"findings": Findings(duplicated=1)},
        {"wrong_states": 1},
        {"wrong_changelogs": 1},
        {"went_back": 1},
        {"misplaced": 1},
        {"findings": Findings(wrong=1), "unfinished": "stands", "spoiled": True},
    ],
)
def test_a_report_of_wrong_results_is_not_ok(wrong: dict[str, object]) -> None:
    assert report().ok
    assert not report(**wrong).ok
    assert report(**wrong).verdict == "WRONG"
    assert "WRONG" in str(report(**wrong))


def test_a_report_of_an_unfinished_run_is_not_ok_and_names_the_reason() -> None:
    unfinished_report = report(unfinished="it stands", evidence=("10:00:00.000 t: ongoing",), data="/logs")
    assert (unfinished_report.ok, unfinished_report.wrong, unfinished_report.verdict) == (
        False,
        False,
        "UNFINISHED",
    )
    assert report(unfinished="it stands", spoiled=True).verdict == "SPOILED"
    assert str(unfinished_report).splitlines()[-4:] == [
        "  transaction 10:00:00.000 t: ongoing",
        "  unfinished  it stands",
        "  data        /logs",
        "  UNFINISHED after 61 s",
    ]


def test_examples_are_shown_only_when_something_is_wrong() -> None:
    repeated = Findings(duplicated=1, examples=("'a': duplicated 3",))
    assert "'a': duplicated 3" in str(report(findings=repeated))
    assert "'a': duplicated 3" not in str(report(findings=repeated, guarantee="at_least_once"))


def test_logs_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "program.log").touch()
    with pytest.raises(CrashTestError, match="is not empty"):
        run_with_crashes(APPS["windowed"], keep_logs=tmp_path)


class TestARunThatTheBrokerSpoils:
    def spoiled(self, times: int, **more: object) -> Callable[[int, int], Report]:
        """Return a run whose first attempts are spoiled."""

        def run(seed: int, attempt: int) -> Report:
            if attempt < times:
                return report(seed=seed, unfinished="forgotten", spoiled=True, **more)
            return report(seed=seed)

        return run

    def test_is_repeated_with_another_seed(self) -> None:
        seeds: list[int] = []
        done = unspoiled(self.spoiled(2), 7, log_report=lambda spoiled: seeds.append(spoiled.seed))
        assert (done.seed, done.ok, seeds) == (207, True, [7, 107])

    def test_is_given_up_when_every_attempt_was_spoiled(self) -> None:
        seeds: list[int] = []
        done = unspoiled(self.spoiled(3), 7, log_report=lambda spoiled: seeds.append(spoiled.seed))
        assert (done.seed, done.verdict, seeds) == (207, "SPOILED", [7, 107])

    def test_is_not_repeated_if_it_was_already_wrong(self) -> None:
        done = unspoiled(self.spoiled(1, findings=Findings(lost=1)), 7, log_report=lambda _: None)
        assert (done.seed, done.verdict) == (7, "WRONG")

    def test_is_reported_in_the_results_of_the_command(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        seeds: list[int] = []

        def run(app: App, *, seed: int, **_: object) -> Report:
            seeds.append(seed)
            return self.spoiled(1)(seed, len(seeds) - 1)

        monkeypatch.setattr(crash_command, "run_with_crashes", run)
        results = tmp_path / "results.json"
        arguments = ["--app", "word-count", "--kills", "2", "--kills-per-run", "1", "--seed", "5"]
        assert main([*arguments, "--results", str(results)]) == 0
        assert seeds == [5, 105, 6]
        outcomes = json.loads(results.read_text())
        assert [outcome["verdict"] for outcome in outcomes] == ["SPOILED", "RIGHT", "RIGHT"]
        assert "3 runs with 21 kills: 2 RIGHT, 1 SPOILED" in capsys.readouterr().out


def test_a_run_that_cannot_be_started_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(app: App, *, seed: int, **_: object) -> Report:
        if seed == 1:
            raise CrashTestError("no broker")
        return report(seed=seed)

    monkeypatch.setattr(crash_command, "run_with_crashes", run)
    assert main(["--app", "word-count", "--kills", "2", "--kills-per-run", "1"]) == 1
    output = capsys.readouterr().out
    assert "word-count, at_least_once, seed 1: could not be started\nno broker" in output
    assert "RIGHT" in output


def test_stops_are_given_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def run(app: App, *, stops: object, faults: object, twice: object, **_: object) -> Report:
        given.append((stops, faults, twice))
        return report()

    monkeypatch.setattr(crash_command, "run_with_crashes", run)
    assert main(["--app", "word-count", "--stops", "0", "--single"]) == 0
    assert main(["--app", "word-count", "--stops", "2,75", "--faults", "stop"]) == 0
    assert given == [((), ("kill", "stop", "slow"), False), ((2.0, 75.0), ["stop"], True)]
