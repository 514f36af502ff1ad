"""The command: runs applications under the harness and prints their reports. The exit code is 0 if all runs were right."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeVar, get_args

from millstream.core.model.errors import MillstreamError
from millstream.testing.crash.app import App, Guarantee
from millstream.testing.crash.apps import APPS
from millstream.testing.crash.crash_report import Report, unspoiled
from millstream.testing.crash.harness import STOPS_S, run_with_crashes
from millstream.testing.crash.kill_plan import FAULTS, TARGETS
from millstream.testing.crash.setup import Engine, checked_targets

RIGHT, WRONG = 0, 1
Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Round:
    """One of several runs: application, number of kills and seed."""

    app: App
    kills: int
    seed: int


def rounds(apps: Sequence[App], kills: int, kills_per_run: int, seed: int) -> Iterator[Round]:
    """Yield runs that distribute the kills over the applications in turn. Each run uses the next seed.

    Example:
        >>> [(run.app.name, run.kills, run.seed) for run in rounds(list(APPS.values()), 10, 4, seed=7)]
        [('word-count', 4, 7), ('windowed', 4, 8), ('two-stores', 2, 9)]
    """
    for number, begin in enumerate(range(0, kills, kills_per_run)):
        yield Round(apps[number % len(apps)], min(kills_per_run, kills - begin), seed + number)


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0 if every run was right, 1 if one was wrong or unfinished. Spoiled runs that were repeated do not count.
    """
    parser = options()
    given = parser.parse_args(arguments)
    try:
        for app in given.app:
            checked_targets(app, given.guarantee, given.targets, small=given.disk is not None)
    except ValueError as error:
        parser.error(str(error))
    reports: list[Report] = []

    def log_report(report: Report) -> None:
        reports.append(report)
        _say(str(report))
        if given.results is not None:
            _write(given.results, reports)

    right = True
    for run in rounds(given.app, given.kills, given.kills_per_run or given.kills, given.seed):
        try:
            report = _report(run, given, log_report)
        except MillstreamError as error:
            right = False
            _say(f"{run.app.name}, {given.guarantee}, seed {run.seed}: could not be started\n{error}")
            continue
        log_report(report)
        right = right and report.ok
    if len(reports) > 1:
        _say(summary(reports))
    return RIGHT if right else WRONG


def summary(reports: Sequence[Report]) -> str:
    runs = Counter(report.verdict for report in reports)
    kills = sum(len(report.kills) for report in reports)
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(runs.items()))
    return f"{len(reports)} runs with {kills} kills: {verdicts}"


def _report(run: Round, given: argparse.Namespace, log_report: Callable[[Report], None]) -> Report:
    """Execute a run, and repeat it if the broker spoils it."""

    def attempt(seed: int, number: int) -> Report:
        return run_with_crashes(
            run.app,
            guarantee=given.guarantee,
            kills=run.kills,
            seed=seed,
            targets=given.targets,
            records=given.records,
            keep_logs=given.keep_logs and given.keep_logs / f"{run.app.name}-{seed}",
            engine=given.engine,
            brokers=given.brokers,
            stops=given.stops,
            faults=given.faults,
            disk=given.disk,
            twice=not given.single,
        )

    return unspoiled(attempt, run.seed, log_report=log_report)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m millstream.testing.crash",
        description="Runs applications while parts of them are killed, and compares their results with an oracle.",
    )
    add = parser.add_argument
    add("--app", type=_apps, required=True, help=f"{', '.join(APPS)}, or MODULE:NAME; several with commas")
    add("--guarantee", choices=get_args(Guarantee), default="at_least_once", help="processing_guarantee")
    add("--kills", type=_count, default=4, metavar="N", help="how often something is killed (4)")
    add(
        "--kills-per-run",
        type=_count,
        metavar="N",
        help="start a new run after this many kills (default: all kills in one run)",
    )
    add("--seed", type=int, default=1, metavar="S", help="of workload, kill points and victims (1)")
    add("--targets", type=partial(_named, "target", TARGETS), help=f"what is killed, with commas: {', '.join(TARGETS)}")  # fmt: skip
    add("--stops", type=_seconds, default=STOPS_S, metavar="SECONDS", help="how long some are stopped and not killed, with commas; 0: none")  # fmt: skip
    add(
        "--faults",
        type=partial(_named, "fault", FAULTS),
        default=FAULTS,
        help=f"what is done to processes, with commas: {', '.join(FAULTS)}",
    )
    add("--disk", type=Path, metavar="DIR", help="directory for checkpoint and state on a small file system, which the target space fills")  # fmt: skip
    add("--single", action="store_true", help="no second kill before the application has recovered")
    add("--engine", choices=get_args(Engine), default="lmdb", help="store_engine (lmdb)")
    add(
        "--brokers",
        type=_count,
        default=1,
        metavar="N",
        help="number of brokers, of which one is killed at a time (1)",
    )
    add("--records", type=_count, metavar="N", help="length of the workload of a run")
    add(
        "--keep-logs", type=Path, metavar="DIR", help="keep logs, checkpoint and broker data of each run here"
    )
    add("--results", type=Path, metavar="FILE", help="write the reports as JSON")
    return parser


def _apps(text: str) -> list[App]:
    return [_app(name) for name in text.split(",")]


def _app(name: str) -> App:
    if name in APPS:
        return APPS[name]
    module, _, attribute = name.partition(":")
    try:
        app = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"there is no application {name!r} ({error}); there are {', '.join(APPS)}, and MODULE:NAME of an App of yours"
        ) from None
    if not isinstance(app, App):
        raise argparse.ArgumentTypeError(f"{name!r} is not an App, but a {type(app).__name__}")
    return app


def _named(what: str, known: Sequence[Name], text: str) -> list[Name]:
    by_name = {str(value): value for value in known}
    unknown = [name for name in text.split(",") if name not in by_name]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
    return [by_name[name] for name in text.split(",")]


def _count(text: str) -> int:
    """Return a number; with 0 kills, for example, nothing would run, and all would be right."""
    if not text.isdecimal() or (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return count


def _seconds(text: str) -> tuple[float, ...]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [-1]
    if not all(0 <= seconds < math.inf for seconds in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of seconds with commas, such as 0.5,75")
    return tuple(seconds for seconds in found if seconds > 0)


def _write(file: Path, reports: Sequence[Report]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps([{**asdict(report), "verdict": report.verdict} for report in reports], indent=1) + "\n"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
